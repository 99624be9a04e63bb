"""What Airflow's providers manager is told about this package."""

from __future__ import annotations

from typing import Any

from airflow_kafka_eos import __version__
from airflow_kafka_eos.config import provider_config

#: The form of Airflow's UI for the ledger's connection: the fields beside the standard ones.
LEDGER_CONNECTION: dict[str, Any] = {
    "connection-type": "kafka_eos_ledger",
    "hook-class-name": "airflow_kafka_eos.hooks.KafkaEosLedgerHook",
    "hook-name": "Kafka exactly-once ledger",
    "ui-field-behaviour": {
        "hidden-fields": [],
        "relabeling": {"schema": "Database"},
        "placeholders": {"host": "the database's host, or the path of an SQLite file"},
    },
    "conn-fields": {
        "backend": {
            "label": "Backend",
            "description": "The kind of database",
            "schema": {
                "type": ["string", "null"],
                "enum": ["postgresql", "mysql", "mariadb", "sqlite"],
                "default": "postgresql",
            },
        },
        "sslmode": {
            "label": "SSL mode",
            "description": "PostgreSQL's sslmode, such as verify-full",
            "schema": {"type": ["string", "null"]},
        },
        "sslrootcert": {
            "label": "CA certificate",
            "description": "PostgreSQL's sslrootcert: the path of the CA certificate on workers and triggerer",
            "schema": {"type": ["string", "null"]},
        },
    },
}


def get_provider_info() -> dict[str, Any]:
    """The ``apache_airflow_provider`` entry point."""
    name = "Kafka exactly-once loads"

    def modules(*names: str) -> list[dict[str, Any]]:
        found = [f"airflow_kafka_eos.{module}" for module in names]
        return [{"integration-name": name, "python-modules": found}]

    return {
        "package-name": "airflow-kafka-eos",
        "name": name,
        "description": "Loads Spark DataFrames into Kafka exactly once.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": name,
                "external-doc-url": "https://kafka.apache.org/documentation/",
                # of the repository, as Airflow's own providers have them
                "how-to-guide": ["/docs/quick-start.md", "/docs/howto-dag-authors.md", "/docs/howto-on-call.md"],
                "tags": ["apache"],
            }
        ],
        "cli": ["airflow_kafka_eos.cli.get_kafka_eos_cli_commands"],
        "operators": modules(
            *("operators.begin", "operators.prepare", "operators.own_submitter", "operators.collect"),
            *("operators.decide", "operators.commit", "operators.maintenance"),
        ),
        "sensors": modules("sensors"),
        "triggers": modules("triggers"),
        "hooks": modules("hooks"),
        "bundles": modules("dag_bundle"),
        "extra-links": [
            "airflow_kafka_eos.operators.links.AlreadyCommittedLink",
            "airflow_kafka_eos.plugin.airflow_plugin.KafkaTransactionsLink",
        ],
        "connection-types": [LEDGER_CONNECTION],
        "config": provider_config(),
    }
