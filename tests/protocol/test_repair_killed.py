"""A repairer is killed at each step: whoever comes next leaves every record there once, and nothing open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import decided, lose, read, state
from tests.protocol.recovering_process import STEPS
from tests.protocol.world import World

DECIDED = ("it is adopted", "its EndTxn is sent", "its markers are seen")


def _cases() -> list[ParameterSet]:
    swept = ("all is flushed", "it is prepared", "it is adopted")
    return [pytest.param(step, False, id=f"{step}, commit comes next") for step in STEPS] + [
        pytest.param(step, True, id=f"{step}, cleanup comes next") for step in swept
    ]


@pytest.mark.parametrize(("step", "swept"), _cases())
def test_killed_when(world: World, settings: KafkaSettings, ledger_url: str, step: str, swept: bool) -> None:
    manifest = decided(world, 2, each=6)
    lose(world, manifest.transactions[1])
    servers = settings.for_librdkafka()["bootstrap.servers"]
    died = subprocess.run(
        [sys.executable, "-m", "tests.protocol.recovering_process", servers, ledger_url, world.load.key, step],
        cwd=Path(__file__).parents[2], timeout=90, capture_output=True, text=True,
    )  # fmt: skip
    assert died.returncode == -9, died.stderr
    assert state(world) is LoadState.REPAIRING
    if swept:
        wait_until(lambda: sweep(world.session, world.load, up_to=1, by="cleanup").is_quiet, "the sweep")
        assert world.open_ids() == []
        # what was decided is rolled forward, what was not is ended
        assert len(read(world, "read_committed")) == (12 if step in DECIDED else 6)
    world.commit()
    assert (len(read(world, "read_committed")), world.open_ids()) == (12, [])
    assert state(world) is LoadState.COMMITTED
    adopted = [r for r in world.session.ledger.repairs(world.load) if r.state.value == "adopted"]
    assert len(adopted) == 1
