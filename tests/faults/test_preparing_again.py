"""A decided load whose lost records are gone from the log: clearing prepare brings it to its end, as in Airflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as PythonTopicPartition

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.protocol.stages import begin as opening
from airflow_kafka_eos.protocol.stages import commit as committing
from airflow_kafka_eos.protocol.stages import decide as deciding
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.faults import running
from tests.faults.environment import Environment
from tests.faults.facts import Record
from tests.faults.generating import generate
from tests.faults.observing import at_rest
from tests.faults.operating import PREPARES_AGAIN, session
from tests.faults.plan import Ended, Order, Plan
from tests.faults.scenario import Keeps, LoadPlan, Role
from tests.faults.tailing import consumer_of, reached, record_of
from tests.faults.timeline import events
from tests.faults.visible import LOAD, Visible
from tests.faults.zygote import ask
from tests.kafka.open_transactions import wait_until

RECORDS, OWNER = 60, "dag/run-0"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    with pytest.MonkeyPatch.context() as settings:
        # one Spark task behind the other: of two at once, librdkafka's 20 ms of lingering keep no batches apart
        settings.setenv("FAULTS_SPARK_CORES", "1")
        with Environment(tmp_path_factory.mktemp("environment")) as running:
            yield running


class Site:
    """One load of three transactions in one partition, each of them in one piece."""

    def __init__(self, environment: Environment, servers: str, topic: str, folder: Path, writer: str) -> None:
        self.environment, self.servers, self.topic, self.folder = environment, servers, topic, folder
        scenario = replace(
            generate(1),
            writer=writer,
            scope="task",
            two_phase=writer == "arrow",  # a repair's transactions have a timeout all the same
            naming="pooling",
            tasks=(3, 5),  # a second attempt would deal the rows out otherwise
            speculates=False,
            loads=(LoadPlan(RECORDS, 48, 12, rich=True),),
            keeps=Keeps.NEWEST,
            faults=(),
        )
        # all of these ledgers have one id: the namespace tells them apart
        url = environment.ledger("sqlite", topic, folder).url
        began_ms = time.time_ns() // 10**6
        self.plan = Plan(scenario.to_json(), str(folder), servers, url, topic, ((topic,),), began_ms)
        self.plan.write()

    def ask(self, role: Role, owner: str = OWNER) -> Ended:
        return ask(self.environment.zygote, Order(role.value, 0, owner, self.plan.folder))

    def decided(self) -> Manifest:
        """Of the load, whose transactions are all open still."""
        for role in (Role.BEGIN, Role.PREPARE):
            assert (ended := self.ask(role)).is_well, ended.error
        with session(self.plan) as s:
            row = deciding.undecided_attempt(s, self.plan.identity(0), owner=OWNER)
            manifest: Manifest = ManifestStore(self.plan.manifests).read(opening.reference(s, row))
            deciding.decide(s, manifest, deciding.Conditions(), owner=OWNER, margin_s=5)
        return manifest

    def lose_the_first_two(self, manifest: Manifest) -> int:
        """The third is committed, and of the others no record is left; where the log begins by now."""
        by_place = sorted(manifest.entries, key=lambda entry: entry.writes[0].first_offset)
        assert all(a.writes[0].last_offset < b.writes[0].first_offset for a, b in pairwise(by_place))
        with session(self.plan) as s:
            for entry in by_place[:2]:
                assert entry.transaction is not None
                s.coordinator.end(entry.transaction, Verdict.ABORT)
            load = self.plan.identity(0)
            wait_until(lambda: not committing.commit_pass(s, load, 1).open, "the end of all three")
        begins = by_place[2].writes[0].first_offset
        admin = AdminClient({"bootstrap.servers": self.servers})
        for done in admin.delete_records([TopicPartition(self.topic, 0, begins)]).values():
            done.result(30)
        return begins

    def visible(self, begins: int) -> Visible:
        rest = at_rest(self.servers, {self.topic: 1}, 30)
        assert not rest.open and not rest.short
        wanted = {PythonTopicPartition(*tp): end for tp, end in rest.stable.items()}
        found: list[Record] = []
        with closing(consumer_of(self.servers, dict.fromkeys(wanted, begins))) as consumer:
            while not reached(consumer, wanted):
                for records in consumer.poll(timeout_ms=200).values():
                    found += map(record_of, records)
        return Visible(found)

    def state(self) -> LoadState:
        with Ledger.open(self.plan.ledger_url) as ledger:
            state = ledger.state(self.plan.identity(0))
        assert state is not None
        return state

    def each_record_is_there_once(self, begins: int) -> None:
        seen = self.visible(begins)
        assert not seen.nobodys and not seen.changed
        (found,) = seen.units(LOAD, self.plan.key(0)).values()  # what was written again says so of no other attempt
        assert sorted(one.value.number for one in found) == list(range(RECORDS))


@pytest.fixture(params=["arrow", "confluent"])
def site(
    environment: Environment,
    kafka: LocalKafka,
    topic: Callable[..., str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Site:
    return Site(environment, kafka.bootstrap_servers, topic(), tmp_path, request.param)


def test_prepare_writes_the_lost_spark_partitions_again(site: Site) -> None:
    """Seed 379317338: a topic was compacted while a lost transaction waited for its repair."""
    manifest = site.decided()
    begins = site.lose_the_first_two(manifest)
    ended = site.ask(Role.COMMIT)
    assert ended.final and "RecordsGoneError" in ended.error
    assert site.state() is LoadState.REPAIRING
    ended = site.ask(Role.PREPARE)
    assert ended.is_well, ended.error
    by_place = sorted(manifest.entries, key=lambda entry: entry.writes[0].first_offset)
    assert sorted(ended.answer["prepared_again"]) == sorted(e.spark_partition for e in by_place[:2])
    for role in (Role.DECIDE, Role.COMMIT, Role.CLEANUP, Role.LOADED):
        assert (ended := site.ask(role)).is_well, (role, ended.error)
    assert site.state() is LoadState.COMMITTED
    site.each_record_is_there_once(begins)


def test_spark_that_fails_leaves_the_load_to_the_next_prepare(site: Site, tmp_path: Path) -> None:
    begins = site.lose_the_first_two(site.decided())
    manifests = Path(site.plan.manifests)
    kept = manifests.rename(tmp_path / "kept")
    manifests.touch()  # no driver can claim anything
    assert site.ask(Role.COMMIT).final
    ended = site.ask(Role.PREPARE)
    assert "Spark failed" in ended.error and site.state() is LoadState.REPAIRING
    manifests.unlink()
    kept.rename(manifests)
    assert (ended := site.ask(Role.PREPARE)).is_well, ended.error
    assert site.ask(Role.COMMIT).is_well and site.state() is LoadState.COMMITTED
    site.each_record_is_there_once(begins)


def test_a_person_clears_prepare_where_no_run_comes_again(site: Site) -> None:
    """As the runner does it for a load that was decided, and that nobody clears (``Wish.ABANDON``)."""
    begins = site.lose_the_first_two(site.decided())
    run = object.__new__(running._Run)
    run.plan, run.scenario, run.environment = site.plan, site.plan.scenario, site.environment
    run.database = SimpleNamespace(url=site.plan.ledger_url)  # type: ignore[assignment]
    run._clear_commits()
    assert site.state() is LoadState.COMMITTED
    assert [e["attempt"] for e in events(str(site.folder)) if e["event"] == PREPARES_AGAIN] == [1]
    site.each_record_is_there_once(begins)
