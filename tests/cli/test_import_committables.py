"""``transactions import-committables``: another sink's prepared transactions, on a real broker."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos import committables
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TransactionDescription,
)
from airflow_kafka_eos.two_phase_commit.import_committables import CommittableState, state_of
from tests.cli.conftest import Command
from tests.cli.test_transactions import Cluster, one, refused
from tests.protocol.world import World, foreign_transaction

Write = Callable[..., str]
IMPORT = ("transactions", "import-committables")


@pytest.fixture
def file(tmp_path: Path) -> Write:
    """A file of committables in one of three forms."""

    def write(*transactions: PreparedTransaction, form: str = "1") -> str:
        path = tmp_path / "committables"
        if form == "json":
            rows = [
                {
                    "transactional_id": t.transactional_id,
                    "producer_id": t.state.producer_id,
                    "producer_epoch": t.state.producer_epoch,
                }
                for t in transactions
            ]
            path.write_text("\n".join(map(json.dumps, rows)) + "\n")
            return str(path)
        data = b""
        for t in transactions:
            name = t.transactional_id.encode()
            body = struct.pack(">hqH", t.state.producer_epoch, t.state.producer_id, len(name)) + name
            if form == "2":
                body = committables.write(t)
            data += struct.pack(">ii", int(form), len(body)) + body
        path.write_bytes(data)
        return str(path)

    return write


def prepared_by_another(world: World, name: str, value: str) -> tuple[PreparedTransaction, Producer]:
    """A sink's transaction that is flushed and open, and the identity that its committable has."""
    producer = foreign_transaction(world, name, value)
    return PreparedTransaction(name, world.session.coordinator.describe([name])[name].state), producer


@pytest.mark.broker
@pytest.mark.parametrize("form", ["1", "2", "json"])
def test_what_a_sink_has_prepared_is_listed_then_committed(
    world: World, command: Command, at: Cluster, file: Write, form: str
) -> None:
    both = [prepared_by_another(world, f"sink-{world.topic}-{n}", f"record {n}") for n in (1, 2)]
    given = [transaction for transaction, _ in both]
    path = file(*given, form=form)
    looked = command(*IMPORT, path, "--output", "json", *at)
    assert looked.code == 1, looked
    rows = json.loads(looked.out)
    assert [row["transactional_id"] for row in rows] == [t.transactional_id for t in given]
    assert {row["state"] for row in rows} == {"prepared"}
    assert all(row["topic_partitions"][0].startswith(world.topic) for row in rows)
    assert world.visible() == []  # looking has ended nothing

    unasked = command(*IMPORT, path, "--commit", *at)
    assert unasked.code == 2 and "--yes" in unasked.err and world.visible() == []

    for _ in range(2):  # safe to repeat
        committed = command(*IMPORT, path, "--commit", "--yes", "--output", "json", *at)
        assert committed.code == 0, committed
        assert {row["state"] for row in json.loads(committed.out)} == {"committed"}
        assert world.visible() == ["record 1", "record 2"]


@pytest.mark.broker
def test_nothing_is_committed_where_one_is_lost_unless_that_is_asked_for(
    world: World, command: Command, at: Cluster, file: Write
) -> None:
    lost, producer = prepared_by_another(world, f"lost-{world.topic}", "lost")
    good, _ = prepared_by_another(world, f"good-{world.topic}", "good")
    producer.abort_transaction(30)
    unknown = PreparedTransaction(f"never-{world.topic}", PreparedTxnState(1, 0))
    path = file(good, lost, unknown)
    refused_ = command(*IMPORT, path, "--commit", "--yes", *at)
    assert refused_.code == 1 and "2 of 3 committables cannot be committed, and nothing was" in refused_.err
    assert lost.transactional_id in refused_.err and world.visible() == []
    partly = command(*IMPORT, path, "--commit", "--partial", "--yes", "--output", "json", *at)
    assert partly.code == 1, partly
    assert [row["state"] for row in json.loads(partly.out)] == ["committed", "aborted", "unknown"]
    assert world.visible() == ["good"]


@pytest.mark.broker
def test_the_transaction_that_has_the_id_by_now_is_left_alone(
    world: World, command: Command, at: Cluster, file: Write
) -> None:
    name = f"again-{world.topic}"
    old, producer = prepared_by_another(world, name, "first")
    producer.abort_transaction(30)
    new, successor = prepared_by_another(world, name, "second")
    assert new.state != old.state
    answer = command(*IMPORT, file(old), "--commit", "--partial", "--yes", "--output", "json", *at)
    assert answer.code == 1 and json.loads(answer.out)[0]["state"] == "id used again"
    assert world.visible() == []
    successor.abort_transaction(30)  # refused, had anybody ended it
    assert world.visible() == []


@pytest.mark.broker
def test_a_loads_own_transaction_is_its_ledgers_to_commit(
    world: World, command: Command, at: Cluster, file: Write
) -> None:
    ours = one(world.prepare(["a"]))
    answer = command(*IMPORT, file(ours), "--commit", "--yes", *at)
    refused(answer, 2, ours.transactional_id, "airflow-kafka-eos transactions commit")
    assert world.visible() == []


@pytest.mark.broker
def test_two_checkpoints_in_one_file_are_refused(world: World, command: Command, at: Cluster, file: Write) -> None:
    given = [PreparedTransaction(f"sink-{world.topic}", PreparedTxnState(7, epoch)) for epoch in (1, 2)]
    refused(command(*IMPORT, file(*given), *at), 2, "one checkpoint only")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it has no committables"),
        (b" \n", "has no committables"),
        (b"\x00\x00\x00\x01\x00\x00", "at byte 0 of the file ends within"),
        (struct.pack(">ii", 3, 0), "has version 3"),
        (struct.pack(">ii", 1, -1), "says that -1 bytes follow"),
        (struct.pack(">ii", 1, 100) + b"x", "says that 100 bytes follow, and 1 do"),
        (struct.pack(">ii", 1, 1) + b"x", "ends within producer epoch"),
        (b'{"transactional_id": "a", "producer_id": 1}', "line 1 is not a JSON object"),
        (b'{"transactional_id": "a", "producer_id": true, "producer_epoch": 1}', "line 1 is not a JSON object"),
        (b'{"transactional_id": "a", "producer_id": 1, "producer_epoch": 0}\nnonsense', "line 2 is not"),
        (b'{"transactional_id": "a", "producer_id": 1, "producer_epoch": 99999}', "producer epoch 99999"),
        (b'{"transactional_id": "", "producer_id": 1, "producer_epoch": 1}', "empty transactional id"),
        (b'{"transactional_id": "\xff', "line 1 is not"),
    ],
)
def test_what_is_no_file_of_committables_is_refused(tmp_path: Path, command: Command, data: bytes, said: str) -> None:
    path = tmp_path / "given"
    path.write_bytes(data)
    refused(command(*IMPORT, str(path), "--bootstrap-server", "127.0.0.1:1"), 2, str(path), said)


def test_a_file_that_is_not_there_is_named(tmp_path: Path, command: Command) -> None:
    for path in (tmp_path / "none", tmp_path):
        refused(command(*IMPORT, str(path), "--bootstrap-server", "127.0.0.1:1"), 2, f"{path} cannot be read")


OURS = PreparedTransaction("sink", PreparedTxnState(7, 3))


@pytest.mark.parametrize(
    ("coordinator", "epoch", "with_bump", "without"),
    [
        (CoordinatorState.ONGOING, 3, CommittableState.PREPARED, CommittableState.PREPARED),
        (CoordinatorState.PREPARE_COMMIT, 3, CommittableState.COMMITTING, CommittableState.COMMITTING),
        (CoordinatorState.PREPARE_COMMIT, 4, CommittableState.COMMITTING, CommittableState.ID_USED_AGAIN),
        (CoordinatorState.COMPLETE_COMMIT, 3, CommittableState.COMMITTED, CommittableState.COMMITTED),
        (CoordinatorState.COMPLETE_COMMIT, 4, CommittableState.COMMITTED, CommittableState.ID_USED_AGAIN),
        (CoordinatorState.PREPARE_ABORT, 4, CommittableState.ABORTED, CommittableState.ABORTED),
        (CoordinatorState.COMPLETE_ABORT, 3, CommittableState.ABORTED, CommittableState.ABORTED),
        (CoordinatorState.PREPARE_EPOCH_FENCE, 4, CommittableState.ABORTED, CommittableState.ABORTED),
        (CoordinatorState.ONGOING, 4, CommittableState.ID_USED_AGAIN, CommittableState.ID_USED_AGAIN),
        (CoordinatorState.COMPLETE_COMMIT, 5, CommittableState.ID_USED_AGAIN, CommittableState.ID_USED_AGAIN),
        (CoordinatorState.COMPLETE_ABORT, 2, CommittableState.ID_USED_AGAIN, CommittableState.ID_USED_AGAIN),
        (CoordinatorState.EMPTY, 3, CommittableState.ID_USED_AGAIN, CommittableState.ID_USED_AGAIN),
        (CoordinatorState.DEAD, 3, CommittableState.ID_USED_AGAIN, CommittableState.ID_USED_AGAIN),
        (CoordinatorState.UNKNOWN, 3, CommittableState.ID_USED_AGAIN, CommittableState.ID_USED_AGAIN),
    ],
)
def test_what_a_coordinators_answer_says(
    coordinator: CoordinatorState, epoch: int, with_bump: CommittableState, without: CommittableState
) -> None:
    seen = TransactionDescription("sink", coordinator, PreparedTxnState(7, epoch), 60_000, 0, frozenset())
    assert state_of(OURS, seen, bumps=True) is with_bump
    assert state_of(OURS, seen, bumps=False) is without
    assert state_of(OURS, None, bumps=True) is CommittableState.UNKNOWN
    other = TransactionDescription("sink", coordinator, PreparedTxnState(8, epoch), 60_000, 0, frozenset())
    assert state_of(OURS, other, bumps=True) is CommittableState.ID_USED_AGAIN
