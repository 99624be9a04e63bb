"""The connection type ``kafka_eos_ledger``: the database that holds the ledger."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.hooks.kafka_eos import ledger_url


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
    conn_type = "kafka_eos_ledger"  # ledger/of_connection.py has it too, and imports SQLAlchemy
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
