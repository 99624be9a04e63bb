"""What Airflow's providers manager is told about this package."""

from __future__ import annotations

from typing import Any

from airflow_kafka_eos import __version__


def get_provider_info() -> dict[str, Any]:
    """The ``apache_airflow_provider`` entry point."""
    return {
        "package-name": "airflow-kafka-eos",
        "name": "Kafka exactly-once loads",
        "description": "Loads Spark DataFrames into Kafka exactly once.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": "Kafka exactly-once loads",
                "external-doc-url": "https://kafka.apache.org/documentation/",
                "tags": ["apache"],
            }
        ],
        "cli": ["airflow_kafka_eos.cli.provider.get_kafka_eos_cli_commands"],
        "operators": [
            {
                "integration-name": "Kafka exactly-once loads",
                "python-modules": [
                    f"airflow_kafka_eos.operators.{name}"
                    for name in ("begin", "prepare", "decide", "commit", "maintenance")
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Kafka exactly-once loads",
                "python-modules": ["airflow_kafka_eos.sensors.cleanup", "airflow_kafka_eos.sensors.loaded"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Kafka exactly-once loads",
                "python-modules": ["airflow_kafka_eos.triggers.cleanup", "airflow_kafka_eos.triggers.loaded"],
            }
        ],
        "hooks": [
            {
                "integration-name": "Kafka exactly-once loads",
                "python-modules": ["airflow_kafka_eos.hooks.kafka_eos"],
            }
        ],
    }
