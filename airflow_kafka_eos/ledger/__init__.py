"""Everything that speaks to the ledger's database: tables, migrations, the compare-and-sets."""

from __future__ import annotations

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.location import default_url, redacted
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow, TransactionRow

__all__ = ["AttemptRow", "Ledger", "LoadRow", "TransactionRow", "default_url", "redacted"]
