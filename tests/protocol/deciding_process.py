"""What decide and commit do, in a process that may be killed: ``deciding_process <servers> <ledger> <manifest> <id>``.

It says ``ready`` when it has a session, and then waits for the manifest of that id's attempt.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from airflow_kafka_eos import manifest
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from tests.protocol.world import RUN


def main(servers: str, ledger_url: str, path: str, name: str) -> None:
    parsed = TransactionalId.parse(name)
    assert parsed is not None
    settings = KafkaSettings.from_mapping({"bootstrap.servers": servers})
    with connect(settings, ledger_url, parsed.load.namespace) as session:
        print("ready", flush=True)
        until = time.monotonic() + 120
        while not Path(path).exists():
            assert time.monotonic() < until, f"{path} does not come"
            time.sleep(0.02)
        ref = AttemptRef(parsed.load, parsed.ledger_id, parsed.attempt)
        document = manifest.load(Path(path).read_text(), ref)
        decide(session, document, Conditions(), owner=RUN, margin_s=4)
        commit(session, parsed.load, deadline_s=30)


if __name__ == "__main__":
    main(*sys.argv[1:])
