"""The arguments of a load that belong together, as an author gives them to ExactlyOnceLoad.

A field has the name that it has everywhere: at the step that takes it, in Airflow's section ``[kafka_eos]``, in the
commands' flags. So the task group hands it on as it is, and an error names it as the author wrote it. Its default is in
that step's signature, nowhere else: what is left out here is UNSET, for None is a value of its own for some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.arguments import shown
from airflow_kafka_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_kafka_eos.arguments import Duration
    from airflow_kafka_eos.load import NamingText, ScopeText, TwoPhaseCommitText, WriterText


class _Unset(Enum):
    UNSET = "as the step has it"

    def __repr__(self) -> str:
        return self.name


UNSET: Any = _Unset.UNSET


@dataclass(frozen=True, kw_only=True)
class Transactions:
    """How a load writes its Kafka transactions, and how long they may stay open (docs/writing.md).

    ::

        ExactlyOnceLoad("load", …, transactions=Transactions(scope="load", hold_time=timedelta(hours=1)))

    A duration is a timedelta, or seconds. What is marked (section) and left out, or None, is as the option of that name
    in Airflow's section ``[kafka_eos]`` says.

    :param scope: ``task``, the default: one Kafka transaction per Spark task; ``load``: one for the whole load, so that
        one request decides all of it. Then each Kafka partition is written by one Spark task, and a task that fails
        fails prepare.
    :param writer: ``arrow``, ``confluent`` (every authentication that librdkafka has, row by row), or ``auto``, the
        default.
    :param two_phase_commit: ``auto``: where the broker grants it (Kafka 4.1 or newer with
        ``transaction.two.phase.commit.enable``), no transaction ever times out, and ``hold_time`` does not count;
        ``required``: prepare fails where it is not granted; ``off``: never asked for. (section)
    :param hold_time: the time from a Spark task's first record until the load is decided (``transaction.timeout.ms``),
        at most the broker's ``transaction.max.timeout.ms``; a task that writes longer than this fails. Two-phase commit
        has no such limit. (section)
    :param margin: time that decide wants left of it, before the broker may end a transaction by itself. (section)
    :param quiet_period: how long nothing may have been open before cleanup ends, after an application that never
        reported, or that was aborted and may have run a task twice: a zombie of it may open one more transaction after
        a sweep. By Spark Connect it is at least 10 s. (section)
    :param transaction_naming: ``incrementing``: transactional ids are never used again, and brokers keep each for
        ``transactional.id.expiration.ms``; ``pooling``: ids of a slot that later loads of the name use again.
        (section)
    :param max_transactional_ids: prepare warns near so many ids of the load's name at the brokers, and fails where it
        would add to them. Default 10,000; None: no cap.
    :param max_transactional_ids_of_namespace: the same for all names of the namespace; default 100,000.
    """

    scope: ScopeText = UNSET
    writer: WriterText = UNSET
    two_phase_commit: TwoPhaseCommitText | None = UNSET
    hold_time: Duration | None = UNSET
    margin: Duration | None = UNSET
    quiet_period: Duration | None = UNSET
    transaction_naming: NamingText | None = UNSET
    max_transactional_ids: int | None = UNSET
    max_transactional_ids_of_namespace: int | None = UNSET


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What must be true of what a load has prepared; else decide refuses it, and nothing of it becomes visible.

    ::

        ExactlyOnceLoad("load", …, checks=Checks(min_records=1_000, check=has_every_shop))

    :param min_records: refuse a load with fewer records. Default 1; 0 or None: one without any is committed, too, and
        takes its key.
    :param max_records: refuse a load with more records.
    :param check: gets the :class:`~airflow_kafka_eos.manifest.Manifest`; False or a text refuses the load.
    """

    min_records: int | None = UNSET
    max_records: int | None = UNSET
    check: Callable[..., Any] | None = UNSET


#: The load's argument for each.
GROUPS: Mapping[str, type[Transactions | Checks]] = {"transactions": Transactions, "checks": Checks}
#: Where an author writes each of their fields.
PLACES: Mapping[str, str] = {
    field.name: f"{argument}={kind.__name__}({field.name}=…)"
    for argument, kind in GROUPS.items()
    for field in fields(kind)
}


def spread(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a load, with what its groups say in the groups' place.

    :raises ConfigurationError: what is given for a group is something else.
    """
    flat = {name: value for name, value in given.items() if name not in GROUPS}
    for name, kind in GROUPS.items():
        if name not in given:
            continue
        group = given[name]
        if not isinstance(group, kind):
            raise ConfigurationError(
                f"{name}={shown(group)} is of type {type(group).__name__}, not {kind.__name__}",
                remedy=f"Write {name}={kind.__name__}(…), after `from airflow_kafka_eos import {kind.__name__}`",
            )
        flat |= {field: value for field, value in vars(group).items() if value is not UNSET}
    return flat
