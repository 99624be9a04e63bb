"""decide with an author's row beside it, in a process that kills itself at a named step.

``dual_writing_process <servers> <ledger> <manifest> <id> <step>``; without a step it goes through. The steps:
``before``, ``behind`` (the author's SQL), ``decided`` (no EndTxn is sent yet), ``halfway`` (one of two is).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from airflow_kafka_eos import manifest
from airflow_kafka_eos.dual_write import DualWrite
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.protocol.world import RUN

INSERT = "INSERT INTO marts VALUES (:load_key, :records)"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingCoordinator(Coordinator):
    """Its process dies behind so many EndTxn."""

    allowed = 0

    def end_many(self, transactions: Iterable[PreparedTransaction], verdict: Verdict) -> dict[str, EndAnswer]:
        for one in list(transactions)[: self.allowed]:
            self.end(one, verdict)
        die()
        return {}


def beside(step: str) -> DualWrite:
    """The author's part: an SQL text where nobody dies in it, else the same by a callable."""
    if step not in ("before", "behind"):
        wanted = DualWrite.of(INSERT, None)
        assert wanted is not None
        return wanted

    def dual_write(connection: Connection, document: Manifest) -> None:
        if step == "before":
            die()
        connection.execute(text(INSERT), {"load_key": document.attempt.load.key, "records": document.records})
        die()

    return DualWrite(call=dual_write)


def main(servers: str, ledger_url: str, path: str, name: str, step: str = "") -> None:
    parsed = TransactionalId.parse(name)
    assert parsed is not None
    document = manifest.load(Path(path).read_text(), AttemptRef(parsed.load, parsed.ledger_id, parsed.attempt))
    settings = KafkaSettings.from_mapping({"bootstrap.servers": servers})
    with connect(settings, ledger_url, parsed.load.namespace) as session:
        decide(session, document, Conditions(), owner=RUN, margin_s=20, dual_write=beside(step))
        commit(_dying(session, step), parsed.load, deadline_s=30)


def _dying(session: Session, step: str) -> Session:
    if step not in ("decided", "halfway"):
        return session
    wire: Any = session.coordinator._wire
    coordinator = DyingCoordinator(wire, namespace=session.namespace, ledger_id=session.ledger.ledger_id)
    coordinator.allowed = int(step == "halfway")
    return replace(session, coordinator=coordinator)


if __name__ == "__main__":
    main(*sys.argv[1:])
