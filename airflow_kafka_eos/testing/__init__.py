"""For who prepares loads in a way of his own: the contract of docs/prepare-contract.md, tried on a real broker.

:mod:`.conformance` has the clauses, :mod:`.assignment` what a prepare under test gets and gives back, :mod:`.rows` the
rows that it loads, :mod:`.local` a broker to try it on.
"""

from airflow_kafka_eos.testing.assignment import (
    Assignment,
    Gate,
    NotConforming,
    Place,
    Prepare,
    Process,
    Running,
)
from airflow_kafka_eos.testing.conformance import CLAUSES, Clause
from airflow_kafka_eos.testing.local import local_place

__all__ = [
    "CLAUSES",
    "Assignment",
    "Clause",
    "Gate",
    "NotConforming",
    "Place",
    "Prepare",
    "Process",
    "Running",
    "local_place",
]
