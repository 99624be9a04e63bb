"""commit, in a process that kills itself at a step of a repair: its arguments are servers, ledger, key and step."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.arrow.sender import Sender
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.commit import commit

#: step -> what is called then, at which of its calls, and whether the process dies before or behind it
STEPS: dict[str, tuple[type, str, int, bool]] = {
    "the loss is recorded": (Ledger, "open_repair", 1, True),
    "the repair is opened": (Ledger, "open_repair", 1, False),
    "its id is initialised": (Coordinator, "init_producer_id", 1, False),
    "a part is written": (Sender, "put", 2, True),
    "all is flushed": (Sender, "flush", 1, False),
    "it is prepared": (Ledger, "adopt", 1, True),
    "it is adopted": (Ledger, "adopt", 1, False),
    "its EndTxn is sent": (Coordinator, "end_many", 2, False),
    "its markers are seen": (Ledger, "record_and_close", 2, True),
}


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fatal(real: Callable[..., Any], call: int, before: bool) -> Callable[..., Any]:
    calls = 0

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if before and calls == call:
            _die()
        done = real(*arguments, **named)
        if calls == call:
            _die()
        return done

    return called


def main(servers: str, ledger_url: str, key: str, step: str) -> None:
    of, name, call, before = STEPS[step]
    setattr(of, name, _fatal(getattr(of, name), call, before))
    settings = KafkaSettings.from_mapping({"bootstrap.servers": servers})
    with connect(settings, ledger_url, "test") as session:
        commit(session, LoadIdentity("test", "orders", key), deadline_s=60)


if __name__ == "__main__":
    main(*sys.argv[1:])
