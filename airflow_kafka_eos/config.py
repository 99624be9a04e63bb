"""Section ``[kafka_eos]`` of Airflow's configuration: what a deployment sets once. Arguments win over it.

Read when a DAG is parsed, on every host that parses it: workers too, so it should say the same on all of them. The
deadline's callback reads it on the triggerer's host, a command where it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

from airflow_kafka_eos.arguments import a_day_or_more, check_bool, duration
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.load import DEFAULT_NAMESPACE, LoadIdentity, TransactionNaming, TwoPhaseCommit

SECTION = "kafka_eos"
T = TypeVar("T")
#: Airflow's own switch. Only as a variable: its airflow.cfg, which Airflow writes by itself, says False unasked
_DEFAULT_DEFERRABLE = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclass(frozen=True)
class Option:
    """One key of the section.

    :param kind: as in Airflow's own configuration reference: ``string``, ``float`` or ``boolean``.
    :param default: as text; empty: not set.
    :param read: makes the value of a text that is not empty; raises ValueError or an error of ours.
    """

    kind: str
    default: str
    description: str
    example: str
    read: Callable[[str], Any]


def _seconds(text: str) -> timedelta:
    return duration("it", float(text))


def _a_day_or_more(text: str) -> timedelta:
    return a_day_or_more("it", float(text))


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("it can be True or False")
    return _BOOLEANS[text.lower()]


def _namespace(text: str) -> str:
    return LoadIdentity(text, "any", "any").namespace


def _absolute(text: str) -> str:
    if "://" not in text and not os.path.isabs(text):
        raise ValueError("a relative path names another folder in each process")
    return text


OPTIONS: Mapping[str, Option] = {
    "namespace": Option(
        "string",
        DEFAULT_NAMESPACE,
        "First part of every transactional id; separates deployments and teams in brokers' ACLs and in the ledger.",
        "payments",
        _namespace,
    ),
    "kafka_conn_id": Option(
        "string", "kafka_default", "Connection of type kafka, where a load names none.", "kafka_prod", str
    ),
    "ledger_conn_id": Option(
        "string",
        "",
        "Connection of the ledger's database, where a load names none. If it is not set, the ledger is an SQLite "
        "file in Airflow's home, which is refused where tasks may run on several hosts.",
        "kafka_eos_ledger_default",
        str,
    ),
    "manifest_dir": Option(
        "string",
        "",
        "Folder or object store for manifests, which workers and Spark drivers share. If it is not set, a folder "
        "in Airflow's home.",
        "/shared/kafka_eos_manifests",
        _absolute,
    ),
    "hold_time": Option(
        "float",
        "900",
        "Seconds from a Spark task's first record until the load must be decided; at most the brokers' "
        "transaction.max.timeout.ms, 900 s by default: raise that first. Two-phase commit has no such limit.",
        "1800",
        _seconds,
    ),
    "margin": Option("float", "60", "Seconds of hold_time that must be left when decide runs.", "120", _seconds),
    "quiet_period": Option(
        "float",
        "10",
        "Where a Spark application never reported, or was aborted and may have run a task twice: seconds for which "
        "nothing may have been open before cleanup ends. By Spark Connect at least 10.",
        "30",
        _seconds,
    ),
    "paused_after": Option(
        "float",
        "900",
        "Seconds after which maintenance ends what is prepared and undecided while its DAG is paused.",
        "3600",
        _seconds,
    ),
    "abandoned_after": Option(
        "float",
        "86400",
        "Seconds without a sign of life after which maintenance, and the command cleanup, end an undecided attempt. "
        "Longer than any run takes from begin to decide, retries included.",
        "172800",
        _seconds,
    ),
    "sweep_timeout": Option(
        "float",
        "600",
        "Seconds that maintenance, and the command cleanup, may take for one namespace.",
        "1800",
        _seconds,
    ),
    "prune_after": Option(
        "float",
        "",
        "Seconds, a day or more, after which maintenance forgets the transactions of attempts that are closed. If it "
        "is not set, it forgets none.",
        "7776000",
        _a_day_or_more,
    ),
    "writer_deadline": Option(
        "float",
        "86400",
        "Seconds after the start of prepare, from which on its writers begin no more transactions.",
        "14400",
        _seconds,
    ),
    "two_phase_commit": Option(
        "string",
        TwoPhaseCommit.AUTO.value,
        "auto, required or off: whether transactions are initialised with KIP-939's Enable2Pc.",
        "required",
        lambda text: TwoPhaseCommit.read("two_phase_commit", text).value,
    ),
    "transaction_naming": Option(
        "string",
        TransactionNaming.INCREMENTING.value,
        "incrementing or pooling: whether later loads of a name use its transactional ids again.",
        "pooling",
        lambda text: TransactionNaming.read("transaction_naming", text).value,
    ),
    "transaction_index": Option(
        "boolean",
        "True",
        "Whether brokers that look like Apache's are asked for their lists of aborted transactions, so that a load's "
        "end is told in the same time whatever its size. False for those that look so and keep their logs otherwise.",
        "False",
        _boolean,
    ),
    "deferrable": Option(
        "boolean",
        "",
        "Whether cleanup and loaded wait in the triggerer. If it is not set, they do, unless the environment "
        "variable AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE says False.",
        "False",
        _boolean,
    ),
}


def setting(key: str, given: T | None = None) -> T:
    """The argument that was given, else the option of section ``[kafka_eos]``, else its default.

    :param given: None: the author gave none.
    :raises ConfigurationError: naming section, key and value, where the option cannot be read.
    """
    return given if given is not None else cast("T", _read(key))


def optional(key: str, given: str | None = None) -> str | None:
    """Like :func:`setting`, for an option that may be left out: then None."""
    return given if given is not None else _read(key)


def deferrable(given: bool | None = None) -> bool:
    """Whether the sensors wait in the triggerer: the argument, the option, Airflow's switch, else yes."""
    if given is not None:
        check_bool("deferrable", given)
    wanted = setting("deferrable", given)
    if wanted is None:
        text = os.environ.get(_DEFAULT_DEFERRABLE, "").strip()
        wanted = _boolean(text) if text.lower() in _BOOLEANS else True
    return bool(wanted)


def _read(key: str) -> Any:
    # here, for get_provider_info imports us for every `airflow` command
    from airflow.providers.common.compat.sdk import conf

    return value_of(key, str(conf.get(SECTION, key, fallback="") or ""))


def value_of(key: str, text: str) -> Any:
    """What an option's text means; its default where the text is empty, None where that is empty too.

    :raises ConfigurationError: as :func:`setting`.
    """
    option = OPTIONS[key]
    text = text.strip() or option.default
    if not text:
        return None
    try:
        return option.read(text)
    except (KafkaEosError, ValueError, OverflowError) as e:
        problem = e.message if isinstance(e, KafkaEosError) else str(e)
        raise ConfigurationError(
            f"Airflow's configuration has [{SECTION}] {key} = {text!r}: {problem}",
            remedy=f"Set it to a {option.kind} such as {option.example} in airflow.cfg, or as "
            f"AIRFLOW__{SECTION.upper()}__{key.upper()}",
        ) from e


def provider_config() -> dict[str, Any]:
    """The section as ``get_provider_info`` hands it to Airflow."""
    return {
        SECTION: {
            "description": "Exactly-once loads into Kafka (airflow-kafka-eos). Arguments of a load win over it.",
            "options": {
                key: {
                    # `airflow config list` shows no default of a provider's option
                    "description": option.description + (f" Default: {option.default}." if option.default else ""),
                    "version_added": "0.1.0",
                    "type": option.kind,
                    "example": option.example,
                    "default": option.default,
                }
                for key, option in OPTIONS.items()
            },
        }
    }
