"""The sandbox's Kafka is real, answers when it says so, keeps its data, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_kafka_eos.errors import BrokerUnavailableError, ConfigurationError, SandboxError
from airflow_kafka_eos.sandbox import broker as probe
from airflow_kafka_eos.sandbox.kafka import LocalKafka

SECONDS = 30.0

pytestmark = pytest.mark.broker


def producer(kafka: LocalKafka, transactional_id: str) -> Producer:
    made = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": transactional_id, "log_level": 0}
    )
    made.init_transactions(SECONDS)
    made.begin_transaction()
    return made


def committed(kafka: LocalKafka, topic: str, wanted: int) -> list[bytes]:
    """What a read_committed reader sees of partition 0, until that is ``wanted`` records or time is up."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader"}
    reader = Consumer({**settings, "isolation.level": "read_committed"})
    reader.assign([TopicPartition(topic, 0, 0)])
    seen: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while len(seen) < wanted and time.monotonic() < deadline:
        message = reader.poll(0.5)
        if message is not None and message.error() is None:
            seen.append(message.value() or b"")
    reader.close()
    return seen


def first_answer(address: str, transactional_id: str, *, two_phase: bool = False) -> int:
    """Error code of one InitProducerId, sent once to the coordinator."""
    from kafka.protocol.metadata import FindCoordinatorRequest
    from kafka.protocol.producer import InitProducerIdRequest

    found = probe.ask(address, FindCoordinatorRequest(key=transactional_id, key_type=1, version=2))
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000, enable2_pc=two_phase,
        version=6 if two_phase else 4,
    )  # fmt: skip
    return int(found.error_code or probe.ask(f"{found.host}:{found.port}", request).error_code)


def answers(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not true() and time.monotonic() < deadline:
        time.sleep(0.1)
    return true()


def test_a_transaction_goes_through_on_the_shared_broker(
    kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic(partitions=1)
    writer = producer(kafka, "shared-1")
    writer.produce(name, b"one")
    writer.commit_transaction(SECONDS)
    assert committed(kafka, name, 1) == [b"one"]


def test_the_broker_takes_two_phase_commit(kafka: LocalKafka) -> None:
    """KIP-939: InitProducerId v6 with Enable2Pc, which needs two broker settings."""
    assert first_answer(kafka.address(1), "two-phase", two_phase=True) == 0


def test_the_broker_listens_on_loopback_only(kafka: LocalKafka) -> None:
    ports = {int(address.split(":")[1]) for address in kafka.bootstrap_servers.split(",")}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            host, port = local.split(":")
            if state == "0A" and int(port, 16) in ports:
                assert host in ("0100007F", "0000000000000000FFFF00000100007F")


def test_a_refused_topic_is_a_clear_error(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    name = topic()
    with pytest.raises(ConfigurationError, match=rf"{name}.*exists"):
        kafka.create_topic(name)
    with pytest.raises(ConfigurationError, match=r"no\.such\.setting"):
        kafka.create_topic("refused-by-the-broker", config={"no.such.setting": "1"})


def test_readiness_leaves_no_transactional_id_behind(kafka: LocalKafka) -> None:
    """A listing of transactions shows the user's own, never the sandbox's."""
    from kafka.protocol.admin import ListTransactionsRequest

    kafka.wait_ready()
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[], version=0)
    listed = {row.transactional_id for row in probe.ask(kafka.address(1), request).transaction_states}
    assert not {name for name in listed if len(name) == 1}


def test_wait_ready_names_what_is_missing(kafka: LocalKafka) -> None:
    assert probe.why_not_ready([kafka.address(1)], 4) is None
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError):
            probe.why_not_ready([address], 4)
        # a node that the others have not met yet
        assert f"does not know {address}" in str(probe.why_not_ready([kafka.address(1), address], 4))


@pytest.mark.parametrize("version", ["3.9", "4.0", "4.1"])
def test_other_versions_answer_as_soon_as_start_returns(version: str) -> None:
    with LocalKafka(version=version) as kafka:
        # sent once each, over every partition of the transaction log: no client library retries here
        assert [first_answer(kafka.address(1), name) for name in "abcd"] == [0, 0, 0, 0]
        kafka.create_topic("versions")
        writer = producer(kafka, "versions-1")
        writer.produce("versions", b"one")
        writer.commit_transaction(SECONDS)
        assert committed(kafka, "versions", 1) == [b"one"]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalKafka]:
    with LocalKafka(data_dir=tmp_path / "kafka") as running:
        yield running


def test_data_and_an_open_transaction_survive_kill_and_restart(own: LocalKafka) -> None:
    assert [first_answer(own.address(1), name) for name in "abcd"] == [0, 0, 0, 0]
    own.create_topic("kept")
    done = producer(own, "done")
    done.produce("kept", b"committed before")
    done.commit_transaction(SECONDS)
    held = producer(own, "open")
    held.produce("kept", b"committed after")
    held.flush(SECONDS)
    address = own.bootstrap_servers

    own.kill()
    assert not answers(address)
    own.restart()

    assert own.bootstrap_servers == address
    assert committed(own, "kept", 1) == [b"committed before"]
    held.commit_transaction(SECONDS)
    assert committed(own, "kept", 2) == [b"committed before", b"committed after"]


def test_a_paused_broker_is_silent_until_it_is_resumed(own: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own.running_ids == [1]
    own.pause(1)
    with monkeypatch.context() as patience, pytest.raises(OSError, match="timed out"):
        patience.setattr(probe, "REQUEST_SECONDS", 1.0)
        first_answer(own.address(1), "a")
    own.resume(1)
    assert first_answer(own.address(1), "a") == 0
    own.kill()
    assert own.running_ids == [] != own.node_ids
    own.pause()  # who is not there is not paused


def test_pausing_returns_when_no_thread_runs_any_more(own: LocalKafka) -> None:
    """A broker answers a dozen requests in the milliseconds in which its threads hear of the signal."""
    group = own._processes[1]._process.pid
    for _ in range(20):
        own.pause()
        found = threads_of(group)
        own.resume()
        assert len(found) > 20  # the broker's, and its watcher's
        assert set(found.values()) == {"T"}
        assert first_answer(own.address(1), "a") == 0  # all of them run again


def threads_of(group: int) -> dict[int, str]:
    """The state of each thread of a process group, which stands still; processes of others come and go meanwhile."""
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(int(process.name)) == group:
                for thread in (process / "task").iterdir():
                    found[int(thread.name)] = (thread / "stat").read_text().rpartition(") ")[2][0]
    return found


def test_a_kept_data_folder_is_used_again_by_the_next_one(tmp_path: Path) -> None:
    with LocalKafka(data_dir=tmp_path) as first:
        first.create_topic("kept")
        writer = producer(first, "kept-1")
        writer.produce("kept", b"one")
        writer.commit_transaction(SECONDS)
    with LocalKafka(data_dir=tmp_path) as second:
        assert committed(second, "kept", 1) == [b"one"]


def test_three_brokers_carry_on_without_one() -> None:
    with LocalKafka(brokers=3) as kafka:
        assert len(set(kafka.bootstrap_servers.split(","))) == 3
        kafka.create_topic("three", partitions=3)
        kafka.kill(2)
        assert not answers(kafka.address(2))
        writer = producer(kafka, "three-1")
        writer.produce("three", b"one", partition=0)
        writer.commit_transaction(SECONDS)
        kafka.restart(2)
        assert committed(kafka, "three", 1) == [b"one"]


def test_settings_of_the_caller_win() -> None:
    from kafka.protocol.admin import DescribeConfigsRequest

    with LocalKafka(broker_settings={"message.max.bytes": "4321"}) as kafka:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name="1", configuration_keys=["message.max.bytes"]
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, version=1)
        assert probe.ask(kafka.address(1), request).results[0].configs[0].value == "4321"


def test_a_broker_that_dies_shows_the_end_of_its_log() -> None:
    with pytest.raises(SandboxError, match=r"(?s)Broker 1 .*exit code 1.*Too small maximum heap"):
        LocalKafka(heap="1m").start()


def test_a_setting_that_kafka_refuses_is_named() -> None:
    with pytest.raises(SandboxError, match=r"(?s)format.*num\.io\.threads"):
        LocalKafka(broker_settings={"num.io.threads": "none"}).start()


def test_a_broker_that_never_gets_ready_is_an_error_with_the_reason(kafka: LocalKafka) -> None:
    os.killpg(kafka._processes[1]._process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BrokerUnavailableError, match="does not answer"):
            kafka.wait_ready(timeout=0.1)
    finally:
        os.killpg(kafka._processes[1]._process.pid, signal.SIGCONT)
    kafka.wait_ready()


STARTED = """
import os, signal, threading
from airflow_kafka_eos.sandbox.kafka import LocalKafka
kafka = LocalKafka()
starter = threading.Thread(target=kafka.start)  # a thread that ends must not take the broker along
starter.start()
starter.join()
kafka.wait_ready()
print(kafka.bootstrap_servers, kafka.log_file().parents[1], flush=True)
input()
"""


@pytest.mark.parametrize("end", ["SIGKILL", "exit"])
def test_the_broker_ends_with_whoever_started_it(end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdin
        assert starter.stdout
        address, folder = starter.stdout.readline().split()
        assert answers(address)
        if end == "SIGKILL":
            starter.kill()
        else:
            starter.stdin.write("\n")
            starter.stdin.flush()
        starter.wait(SECONDS)
    assert wait_until(lambda: not answers(address))
    if end == "exit":
        assert not Path(folder).exists()


def test_a_cluster_id_that_begins_with_a_dash_is_no_option(tmp_path: Path) -> None:
    """One in 64 random ids does."""
    (tmp_path / "cluster-id").write_text("-a32nNJUQdmJbjE_U2IaGg")
    with LocalKafka(data_dir=tmp_path) as kafka:
        assert (tmp_path / "cluster-id").read_text() == "-a32nNJUQdmJbjE_U2IaGg"
        assert kafka.bootstrap_servers


def test_a_broker_that_ends_by_itself_is_named_and_started_again_with_its_data(tmp_path: Path) -> None:
    said: list[str] = []
    with LocalKafka(data_dir=tmp_path, log=said.append, start_again=True) as kafka:
        kafka.create_topic("kept")
        sent = producer(kafka, "sent")
        sent.produce("kept", b"before")
        sent.commit_transaction(SECONDS)
        # a broker that is killed between the client's answer and the marker may forget the marker (docs/adr/0021)
        assert committed(kafka, "kept", 1) == [b"before"]
        (watcher,) = (p for p in psutil.Process().children() if str(tmp_path) in p.cmdline()[-1])
        (broker,) = watcher.children()
        broker.kill()
        line = "broker 1 ended by itself (killed by SIGKILL); started again (1), its log: "
        assert wait_until(lambda: line + str(kafka.log_file()) in said), "\n".join(said)
        kafka.wait_ready()
        assert committed(kafka, "kept", 1) == [b"before"]
        kafka.check()
        kafka.kill()  # on purpose: it stays down
        time.sleep(1)
        assert kafka.running_ids == [] and len([text for text in said if "ended by itself" in text]) == 1
