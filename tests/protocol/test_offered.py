"""A real broker that seems to offer less (a proxy rewrites its ApiVersions): refused before anything is written.

Refused is what is lacking, whoever's broker it is; and what is called enough is enough, for whole loads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from airflow_kafka_eos.errors import AccessError, BrokerTooOldError
from airflow_kafka_eos.kafka.admin.capabilities import CAPABILITIES, ENDING, Capability
from airflow_kafka_eos.kafka.admin.inspect import ids_listed
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, LoadState, TwoPhaseCommit, Verdict
from airflow_kafka_eos.manifest import ManifestEntry
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import check_brokers, record_prepared, reference
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.transaction import Outcome, TopicPartition
from tests.kafka.offering_proxy import Offer, OfferingProxy, offering
from tests.protocol.forgetful import decide_anyway, end, prepare_forgotten, shown, sweep_it
from tests.protocol.lost import decided, lose, read, state
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker
NEEDED = [c for c in CAPABILITIES if c.is_needed]
_numbers = itertools.count(1)


def settings_of(address: str) -> KafkaSettings:
    return KafkaSettings.from_mapping({"bootstrap.servers": address})


@pytest.fixture(scope="module", params=["4.4", "3.9"])
def less(request: pytest.FixtureRequest) -> Iterator[tuple[LocalKafka, str, Offer]]:
    """A broker, the address where it offers less, and how much less.

    It takes records that no coordinator knows of, so that it can be made to forget the end of a transaction.
    """
    lax = {"transaction.partition.verification.enable": "false"}
    with LocalKafka(version=request.param, broker_settings=lax) as kafka, offering(kafka) as proxies:
        kafka.create_topic("orders", partitions=2)
        yield kafka, proxies[1].address, proxies[1].offer


@pytest.fixture
def offer(less: tuple[LocalKafka, str, Offer]) -> Iterator[Offer]:
    less[2].clear()
    yield less[2]
    less[2].clear()


@pytest.fixture
def opened(less: tuple[LocalKafka, str, Offer], offer: Offer, ledger_url: str) -> Iterator[Session]:
    """A session that has been opened where everything is still offered; what it asks for anew is not."""
    with connect(settings_of(less[1]), ledger_url, "less") as session:
        yield session


def world_of(session: Session, topic: str = "orders") -> World:
    load = LoadIdentity("less", "orders", f"key-{next(_numbers)}")
    return World(session, session.partitions.wire.settings, topic, load)


def options() -> WriteOptions:
    given = WriteOptions.parse(
        {
            "topic": "orders", "load.name": "orders", "load.key": "k", "load.attempt": "1",
            "ledger.id": "0123456789", "manifest.dir": "/m", "transaction.timeout.ms": "60000", "deadline.ms": "1",
        }
    )  # fmt: skip
    return replace(given, two_phase_commit=TwoPhaseCommit.AUTO)


def known_ids(kafka: LocalKafka) -> list[str]:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        return [one.transactional_id for one in ids_listed(wire, "airflow.0123456789.")]


def lower(offer: Offer, one: Capability) -> None:
    if one.lowest:
        offer.highest[one.key] = one.lowest - 1
    else:
        offer.hidden.add(one.key)


@pytest.mark.parametrize("one", NEEDED, ids=str)
def test_what_is_missing_is_refused_by_begin_and_prepare_before_anything_is_written(
    one: Capability, less: tuple[LocalKafka, str, Offer], offer: Offer, opened: Session
) -> None:
    kafka, address, _ = less
    lower(offer, one)
    said = rf"broker 1 \({address}\) lacks what exactly-once needs: {one.name} \("
    for refused in (lambda: check_cluster(settings_of(address), options()), lambda: check_brokers(opened)):
        with pytest.raises(BrokerTooOldError, match=said) as caught:
            refused()
        assert f"from {one.since} on" in caught.value.remedy
    assert offer.refused == []  # nobody has tried it
    assert known_ids(kafka) == []


@pytest.mark.parametrize("one", [c for c in NEEDED if not ENDING.isdisjoint(c.steps)], ids=str)
def test_no_step_opens_a_session_where_its_own_requests_are_missing(
    one: Capability, less: tuple[LocalKafka, str, Offer], offer: Offer, ledger_url: str
) -> None:
    lower(offer, one)
    with pytest.raises(BrokerTooOldError, match=one.name), connect(settings_of(less[1]), ledger_url, "less"):
        pytest.fail("it was opened")


def outcomes(world: World) -> list[Outcome | None]:
    return sorted((t.outcome for t in world.session.ledger.transactions(world.load, 1)), key=str)


def test_the_lowest_of_everything_is_enough_for_loads_cleanup_and_repair(
    less: tuple[LocalKafka, str, Offer], offer: Offer, ledger_url: str
) -> None:
    """Without all that is optional, too. The proxy cuts off whoever sends more than is offered."""
    _, address, _ = less
    offer.hidden |= {c.key for c in CAPABILITIES} - {c.key for c in NEEDED}
    offer.highest |= {c.key: c.lowest for c in NEEDED}
    assert not check_cluster(settings_of(address), options()).two_phase_commit
    with connect(settings_of(address), ledger_url, "less") as session:
        committed, lost, aborted = world_of(session), world_of(session), world_of(session)
        before = len(read(committed, "read_committed"))
        manifest, again = decided(committed, 2), decided(lost, 1)
        for transaction in again.transactions:
            lose(lost, transaction)
        aborted.prepare(["never"])
        for world in (committed, lost):
            world.commit(deadline_s=60)
            assert state(world) is LoadState.COMMITTED
        assert outcomes(lost) == [Outcome.COMMITTED, Outcome.SUPERSEDED]
        poll = CleanPoll(aborted.load, up_to=1, by=RUN, quiet_s=0)
        while poll(session) is not None:
            pass
        assert len(poll.summary()["aborted"]) == 1
        assert len(read(committed, "read_committed")) == before + manifest.records + again.records
        assert committed.open_ids() == []
    assert offer.refused == []


def test_a_load_is_committed_where_nobody_may_write_end_markers(
    less: tuple[LocalKafka, str, Offer], offer: Offer, ledger_url: str
) -> None:
    offer.hidden |= {c.key for c in CAPABILITIES if c.warns}
    check_cluster(settings_of(less[1]), options())
    with connect(settings_of(less[1]), ledger_url, "less") as session:
        world = world_of(session)
        manifest = decided(world, 2)
        world.commit()
        assert (state(world), outcomes(world)) == (LoadState.COMMITTED, [Outcome.COMMITTED] * 2)
        assert len(manifest.transactions) == 2 and world.open_ids() == []
    assert offer.refused == []


def test_what_a_broker_has_forgotten_to_end_is_named_where_no_markers_are_taken(
    less: tuple[LocalKafka, str, Offer], offer: Offer, ledger_url: str
) -> None:
    """And is ended once somebody comes by a way where they are."""
    kafka, address, _ = less
    kafka.create_topic("forgotten", partitions=3)
    offer.hidden |= {c.key for c in CAPABILITIES if c.warns}
    with connect(settings_of(address), ledger_url, "less") as session:
        world = world_of(session, "forgotten")
        manifest = prepare_forgotten(world, "ab", known=[2])
        decide_anyway(world, manifest)
        transaction = end(world, manifest, Verdict.COMMIT)
        for step in (world.commit, lambda: sweep_it(world)):
            with pytest.raises(AccessError, match="do not offer WriteTxnMarkers") as caught:
                step()
            recover = f"loads recover {world.load.in_command}` with a connection to these brokers that offers"
            assert recover in caught.value.remedy
            assert caught.value.transactional_id == transaction.transactional_id
        assert len(shown(world, transaction)) == 2
        left = replace(world, load=replace(world.load, key=f"{world.load.key} aborted"))
        hanging = end(left, prepare_forgotten(left, "ab", known=[2]), Verdict.ABORT)
        problem = sweep_it(left)
        assert isinstance(problem, AccessError)
        assert "transactions hanging --running-longer-than 0s --abort` with a connection" in problem.remedy
        assert len(shown(left, hanging)) == 2
    with connect(settings_of(kafka.bootstrap_servers), ledger_url, "less") as session:
        assert commit(session, world.load, deadline_s=30).verdict is Verdict.COMMIT
        here = replace(left, session=session, settings=session.partitions.wire.settings)
        assert sweep_it(here) is None
        assert (shown(here, transaction), shown(here, hanging), here.visible()) == ([], [], ["a", "b"])


@pytest.fixture(scope="module")
def three() -> Iterator[dict[int, OfferingProxy]]:
    """A cluster each broker of which may offer less by itself, as while it is upgraded."""
    with LocalKafka(brokers=3, heap="256m") as kafka, offering(kafka) as proxies:
        kafka.create_topic("orders", partitions=6)
        yield proxies


def test_one_broker_of_three_is_enough_to_be_refused(three: dict[int, OfferingProxy], ledger_url: str) -> None:
    """Whoever answers first does not speak for the others."""
    (one,) = (c for c in NEEDED if c.name == "DescribeProducers")
    first = settings_of(three[1].address)
    lower(three[2].offer, one)
    with connect(first, ledger_url, "less") as session, pytest.raises(BrokerTooOldError) as caught:
        check_brokers(session)
    assert caught.value.message.startswith(f"broker 2 ({three[2].address}) lacks what")
    with pytest.raises(BrokerTooOldError, match=r"^broker 2 "):
        check_cluster(first, options())
    three[2].offer.clear()
    assert check_cluster(first, options()).two_phase_commit


def test_a_load_goes_through_a_cluster_that_is_being_upgraded(
    three: dict[int, OfferingProxy], ledger_url: str
) -> None:
    """Each broker gets versions that it offers itself: one that does not know Produce v13 closes the connection."""
    old = BROKER_API_VERSIONS[4, 0]
    three[2].offer.highest |= {key: highest for key, (_, highest) in old.items()}
    with connect(settings_of(three[1].address), ledger_url, "less") as session:
        world = world_of(session)
        leaders = session.partitions.wire.leaders(TopicPartition("orders", n) for n in range(6))
        assert set(leaders.values()) == {1, 2, 3}
        before = len(read(world, "read_committed"))
        ref = reference(session, world.open_attempt())
        name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 0)
        entry = ManifestEntry(0, *world.write_arrow(name, [str(n) for n in range(100)]))
        assert {w.partition for w in entry.writes} == set(range(6))
        manifest = world.manifest(ref, [entry])
        record_prepared(session, manifest)
        world.decide(manifest)
        world.commit(deadline_s=60)
        assert (state(world), len(read(world, "read_committed"))) == (LoadState.COMMITTED, before + 100)
    assert [proxy.offer.refused for proxy in three.values()] == [[], [], []]
    three[2].offer.clear()
