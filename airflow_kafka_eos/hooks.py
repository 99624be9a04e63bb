"""Airflow connections to what the protocol needs: the cluster (type ``kafka``), the ledger, the schema registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from airflow.providers.common.compat.sdk import conf, mask_secret
from airflow.sdk import BaseHook
from asgiref.sync import sync_to_async

from airflow_kafka_eos.config import OPTIONS, setting
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.spark.formats.settings import RegistrySettings


@dataclass(frozen=True, repr=False)
class Resolved:
    """What the two connections say. Holds secrets: never logged, never serialised."""

    settings: KafkaSettings
    ledger_url: str

    def ledger(self, *, existing: bool = False) -> Ledger:
        """Open the ledger alone; close it afterwards.

        :param existing: never make or upgrade one (``Ledger.open_existing``).
        :raises LedgerUnavailableError: the ledger's database does not answer, or is not upgraded.
        :raises OtherLedgerError: ``existing``, and there is none.
        """
        from airflow_kafka_eos.ledger.ledger import Ledger

        return Ledger.open_existing(self.ledger_url) if existing else Ledger.open(self.ledger_url)

    @property
    def has_no_ledger_file(self) -> bool:
        """True where the ledger is an SQLite file that nobody has made yet."""
        from airflow_kafka_eos.ledger.database import Database

        return Database(self.ledger_url).is_missing

    @property
    def secrets(self) -> list[str]:
        """What of both must not stand in a text for people."""
        from airflow_kafka_eos.ledger.location import parse, secrets_of

        return [*self.settings.secrets, *secrets_of(parse(self.ledger_url))]

    @contextmanager
    def session(
        self, namespace: str, *, timeout_s: float = 60, existing: bool = False, ledger_id: str | None = None
    ) -> Iterator[Session]:
        """Open ledger and cluster; see :func:`airflow_kafka_eos.protocol.session.connect` for the errors.

        :param existing: never make or upgrade a ledger.
        :param ledger_id: which one an existing one has to be; None: that is not known.
        :raises OtherLedgerError: ``existing``, and there is none, or another one.
        """
        from airflow_kafka_eos.ledger.ledger import Ledger
        from airflow_kafka_eos.protocol.session import connect

        open_ledger = partial(Ledger.open_existing, ledger_id=ledger_id) if existing else Ledger.open
        with connect(
            self.settings,
            self.ledger_url,
            namespace,
            timeout_s=timeout_s,
            open_ledger=open_ledger,
            reads_index=setting("transaction_index"),
        ) as session:
            yield session


class KafkaEosHook(BaseHook):
    """Resolves the Kafka connection and the ledger's.

    ::

        with KafkaEosHook("kafka_default", "kafka_eos_ledger_default").resolve().session("airflow") as session:
            print(session.ledger.overview("airflow"), session.coordinator.list_open("airflow."))

    :param kafka_conn_id: a connection of the Kafka provider's type ``kafka``: librdkafka keys in its extra.
    :param ledger_conn_id: a connection of type kafka_eos_ledger, postgres, mysql or sqlite; None for the embedded
        SQLite file beside Airflow's home, which is upgraded by itself.
    """

    conn_name_attr = "kafka_conn_id"
    default_conn_name = OPTIONS["kafka_conn_id"].default

    def __init__(self, kafka_conn_id: str = default_conn_name, ledger_conn_id: str | None = None) -> None:
        super().__init__()
        self.kafka_conn_id = kafka_conn_id
        self.ledger_conn_id = ledger_conn_id

    def resolve(self) -> Resolved:
        """Read both connections.

        :raises ConfigurationError: a connection lacks what it needs; names the connection and the key.
        """
        kafka = self.get_connection(self.kafka_conn_id)
        ledger = self.get_connection(self.ledger_conn_id) if self.ledger_conn_id else None
        return self._resolved(kafka, ledger)

    async def aresolve(self) -> Resolved:
        """The same, for triggers."""
        kafka = await self.aget_connection(self.kafka_conn_id)
        ledger = await self.aget_connection(self.ledger_conn_id) if self.ledger_conn_id else None
        # Google's provider reads a connection of its own, which waits
        return await sync_to_async(self._resolved)(kafka, ledger)

    def _resolved(self, kafka: Any, ledger: Any) -> Resolved:
        from airflow_kafka_eos.kafka_connection import settings_of
        from airflow_kafka_eos.ledger.location import default_url

        settings = settings_of(self.kafka_conn_id, kafka.extra_dejson)
        if ledger is None:
            _check_one_host(conf.get("core", "executor"))
        return Resolved(settings, ledger_url(ledger) if ledger is not None else default_url())


def _check_one_host(executor: str) -> None:
    """Two hosts would have two ledgers: a load that is committed in one would be loaded again from the other.

    :raises ConfigurationError: the executor may run tasks on other hosts.
    """
    names = {part.strip().rpartition(".")[2].rpartition(":")[2] for part in executor.split(",")}
    if not names <= {"LocalExecutor", "SequentialExecutor"}:
        raise ConfigurationError(
            f"ledger_conn_id is not set, and executor={executor!r} may run tasks on several hosts: each would have a "
            "ledger of its own in its Airflow home",
            remedy="Make an Airflow connection to a PostgreSQL, run `airflow-kafka-eos ledger upgrade --conn-id …`, "
            "and set ledger_conn_id to it",
        )


def registry_settings(conn_id: str) -> RegistrySettings:
    """The schema registry that an Airflow connection of type ``http`` names.

    :raises ConfigurationError: the connection lacks what it needs; names the connection and the key.
    """
    from airflow_kafka_eos.spark.formats.settings import RegistrySettings

    found = BaseHook.get_connection(conn_id)
    try:
        return RegistrySettings.from_connection(
            host=found.host,
            schema=found.schema,
            port=found.port,
            login=found.login,
            password=found.password,
            extra=found.extra_dejson,
        )
    except ConfigurationError as e:
        e.message = f"Airflow connection {conn_id!r}: {e.message}"
        raise


def ledger_url(connection: Any, use: str = "hold the ledger") -> str:
    """The SQLAlchemy URL, with password, of an Airflow connection; its password is masked in logs.

    :param use: see there.
    :raises ConfigurationError: see :func:`~airflow_kafka_eos.ledger.location.ledger_url`.
    """
    from airflow_kafka_eos.ledger import location

    if connection.password:
        # Airflow masks the password as it is, and not as it stands in a URL
        mask_secret(quote(connection.password, safe=""))
        mask_secret(quote_plus(connection.password))
    return location.ledger_url(connection, use)


class KafkaEosLedgerHook(BaseHook):
    """The ledger of an Airflow connection, for its form's *Test* button and for code of your own.

    ::

        with KafkaEosLedgerHook("kafka_eos_ledger_default").open() as ledger:
            print(ledger.overview("airflow", "orders.load"))

    The form: host, port, login, password, schema (the database's name), and ``backend``: ``postgresql`` (default),
    ``mysql``, ``mariadb`` or ``sqlite`` (its file's path in host). Further keys of the extra that begin with ``ssl``,
    ``connect_`` or ``application_`` reach the driver. Connections of type postgres, mysql and sqlite do as well.
    """

    conn_name_attr = "ledger_conn_id"
    default_conn_name = "kafka_eos_ledger_default"
    conn_type = "kafka_eos_ledger"  # ledger/location.py has it too, and imports SQLAlchemy
    hook_name = "Kafka exactly-once ledger"  # the form's fields: get_provider_info

    def __init__(self, ledger_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ledger_conn_id = ledger_conn_id

    def get_conn(self) -> Any:
        """Open the ledger; close it afterwards.

        :raises ConfigurationError: the connection cannot hold a ledger.
        :raises LedgerUnavailableError: the database does not answer, or is not upgraded.
        """
        from airflow_kafka_eos.ledger.ledger import Ledger

        return Ledger.open(ledger_url(self.get_connection(self.ledger_conn_id)))

    def open(self) -> Any:
        """The same, under a name that says it: a context manager."""
        return self.get_conn()

    def test_connection(self) -> tuple[bool, str]:
        """Whether the ledger can be opened, and which it is; makes and upgrades none, shows no password."""
        from airflow_kafka_eos.ledger.ledger import Ledger

        try:
            with Ledger.open(ledger_url(self.get_connection(self.ledger_conn_id)), upgrade=False) as ledger:
                return True, f"{ledger!r} answers; its id is {ledger.ledger_id}"
        except KafkaEosError as e:
            return False, str(e)
