"""What all operators and sensors of a load have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_kafka_eos.errors import ConfigurationError, TerminalError
from airflow_kafka_eos.hooks.kafka_eos import KafkaEosHook
from airflow_kafka_eos.load import DEFAULT_NAMESPACE, LoadIdentity

if TYPE_CHECKING:
    from airflow_kafka_eos.protocol.session import Session

#: The identity's key when the author gives none: scheduled and backfill runs of one date are one load, whatever
#: run, try or clear they come from; manual runs have no date, their run id stands for them (design.md, Words).
DEFAULT_LOAD_KEY = (
    "{{ dag_run.partition_key or (dag_run.logical_date.isoformat() if dag_run.logical_date else run_id) }}"
)

#: dag id and run id may have 250 characters each
MAX_OWNER = 200
_MAPPED = "#map_index="


class LoadOperator(BaseOperator):
    """One step of a load.

    :param load_name: the load's name, one for all of its keys. (templated)
    :param load_key: which one of them; one key loads once. Default: the run's partition key, else its logical date,
        else its run id. (templated)
    :param namespace: separates loads that may share a name; first part of every transactional id. (templated)
    :param kafka_conn_id: connection of the Kafka provider's type ``kafka``.
    :param ledger_conn_id: connection of the metadata DB; None for the embedded SQLite file beside Airflow's home.
    """

    template_fields: Sequence[str] = ("load_name", "load_key", "namespace")

    def __init__(
        self,
        *,
        load_name: str,
        load_key: str = DEFAULT_LOAD_KEY,
        namespace: str = DEFAULT_NAMESPACE,
        kafka_conn_id: str = "kafka_default",
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.load_name = load_name
        self.load_key = load_key
        self._has_own_key = load_key != DEFAULT_LOAD_KEY
        self.namespace = namespace
        self.kafka_conn_id = kafka_conn_id
        self.ledger_conn_id = ledger_conn_id

    @property
    def load_identity(self) -> LoadIdentity:
        """The load, once the templates are rendered."""
        return LoadIdentity(self.namespace, self.load_name, self.load_key)

    def pre_execute(self, context: Any) -> None:
        """Refuse mapped loads that would share one identity: the second would be taken for loaded already.

        :raises AirflowFailException: a mapped load has no ``load_key`` of its own.
        """
        super().pre_execute(context)
        if owner_index(context) is not None and not self._has_own_key:
            with no_retry_of_terminal_errors():
                raise ConfigurationError(
                    f"load_key of the mapped load {self.load_name!r} is the default, the same for every map index",
                    remedy="Set load_key to what tells the mapped loads apart, the topic's name for one",
                    load=str(self.load_identity),
                )

    @contextmanager
    def open_session(self) -> Iterator[Session]:
        """Ledger and cluster of this load's connections; terminal errors of ours end the task without retries."""
        with no_retry_of_terminal_errors():
            resolved = KafkaEosHook(self.kafka_conn_id, self.ledger_conn_id).resolve()
            with resolved.session(self.namespace) as session:
                yield session


@contextmanager
def no_retry_of_terminal_errors() -> Iterator[None]:
    """Trying again cannot help a terminal error: Airflow is told so."""
    try:
        yield
    except TerminalError as e:
        raise AirflowFailException(f"{type(e).__name__}: {e}") from e


def owner_of(context: Any) -> str:
    """The run that a task instance acts for, the same on every try and every clear of it.

    Short enough for the ledger to keep it whole: cleanup finds a run's own attempts by it.
    """
    ti, index = context["ti"], owner_index(context)
    owner = f"{ti.dag_id}/{ti.run_id}" + ("" if index is None else f"{_MAPPED}{index}")
    if len(owner) <= MAX_OWNER:
        return owner
    return f"{owner[: MAX_OWNER - 17]}#{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


def are_siblings(owner: str, other: str) -> bool:
    """Whether two owners are different map indexes of one run."""
    run, mapped, _ = owner.rpartition(_MAPPED)
    return owner != other and bool(mapped) and other.startswith(run + mapped)


def owner_index(context: Any) -> int | None:
    """The map index of a task instance of a mapped group, None elsewhere."""
    index = context["ti"].map_index
    return index if index is not None and index >= 0 else None
