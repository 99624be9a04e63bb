"""Two-phase commits with Kafka from Python, without Airflow: KIP-939's calls, and FLIP-319's committables.

:mod:`.recipe` has KIP-939's producer calls over a ledger; :mod:`.import_committables` commits what another sink has
prepared. Both are public, and so is what stands here. docs/two-phase-commit.md has a program for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.protocol import session
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.two_phase_commit.recipe import (
    Completion,
    complete_transaction,
    init_transactions,
    is_keep_prepared_granted,
    prepared_state,
)

__all__ = [
    "Completion",
    "Session",
    "brokers",
    "complete_transaction",
    "connect",
    "init_transactions",
    "is_keep_prepared_granted",
    "prepared_state",
]


@contextmanager
def connect(kafka: Mapping[str, Any], ledger: str, namespace: str, *, timeout_s: float = 60) -> Iterator[Session]:
    """Open a ledger that is there, and its cluster; both are closed afterwards.

    :param kafka: settings under librdkafka's names, as the extra of an Airflow connection has them.
    :param ledger: SQLAlchemy's URL of the ledger's database. It is neither made nor upgraded.
    :param namespace: of the loads whose transactional ids are meant.
    :param timeout_s: seconds that one request, with its retries, may take.
    :raises ConfigurationError: a setting is wrong.
    :raises LedgerUnavailableError: the ledger is not there, not upgraded, or does not answer.
    :raises BrokerUnavailableError: no broker answers.
    :raises AccessError: the brokers refuse the credentials.
    """
    settings = KafkaSettings.from_mapping(kafka)
    there = partial(Ledger.open, upgrade=False)
    with session.connect(settings, ledger, namespace, timeout_s=timeout_s, open_ledger=there) as opened:
        yield opened


def brokers(kafka: Mapping[str, Any], *, timeout_s: float = 60) -> Wire:
    """A cluster's brokers, without a ledger, for :mod:`.import_committables`; closed by ``with``.

    :param kafka: see :func:`connect`.
    :raises ConfigurationError: a setting is wrong.
    """
    return Wire(KafkaSettings.from_mapping(kafka), timeout_s=timeout_s)
