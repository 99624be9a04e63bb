"""How many transactional ids there are: counted at the brokers, capped, and told (FLIP-511)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.rows import SlotRow
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming
from airflow_kafka_eos.naming import AnyId, PooledId, TransactionalId
from airflow_kafka_eos.protocol.guards.id_caps import BYTES_PER_ID, Caps, check_caps, ids_report, summary
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.begin import submit
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import RUN

_names = itertools.count(1)
NOW = datetime(2026, 1, 8, tzinfo=UTC)
LEDGER = "0123456789"
POOLING, INCREMENTING = TransactionNaming.POOLING, TransactionNaming.INCREMENTING


def ago(**time: float) -> str:
    return (NOW - timedelta(**time)).isoformat()


def slot(number: int, **changes: str | None) -> SlotRow:
    made = SlotRow("team", "orders", number, LoadIdentity("team", "orders", "k"), 1, ago(days=9), ago(days=1),
                   ago(days=1), ago(days=1), None, None)  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_report_tells_names_apart_and_counts_what_is_there() -> None:
    ids: list[AnyId] = [
        PooledId("team", LEDGER, "orders", 0, 0, 0),
        PooledId("team", LEDGER, "orders", 0, 1, 0),
        TransactionalId(LoadIdentity("team", "orders", "old"), LEDGER, 2, 0, 0),
        TransactionalId(LoadIdentity("team", "payments", "x"), LEDGER, 1, 0, 0),
    ]
    slots = [
        slot(0, released_at=None),
        slot(1, quarantined_until=(NOW + timedelta(hours=1)).isoformat()),
        slot(2, quarantined_until=ago(hours=1)),
        slot(3, doubt="open"),
    ]
    submitted = {(LoadIdentity("team", "orders", "old"), 2): ago(days=8)}
    report = summary("team", ids, slots, submitted, 7 * 86_400_000, NOW)
    orders, payments = report.names
    assert orders.load_name == "orders"
    assert (orders.slots, orders.leased, orders.quarantined, orders.in_doubt) == (4, 1, 1, 1)
    assert orders.slots_in_doubt == (3,), "which one is to be settled"
    assert (orders.pooled, orders.incrementing, orders.ids) == (2, 1, 3)
    assert (orders.oldest_s, orders.expired) == (8 * 86_400, 1)
    assert orders.bytes == 3 * BYTES_PER_ID + sum(len(str(i)) for i in ids[:3])
    assert (payments.ids, payments.slots, payments.oldest_s, payments.expired) == (1, 0, None, 0)
    assert (report.ids, report.bytes) == (4, orders.bytes + payments.bytes)
    assert summary("team", ids, slots, submitted, None, NOW).names[0].expired == 0


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_cap_that_allows_nothing_is_refused(wrong: int) -> None:
    for caps in ({"per_name": wrong}, {"per_namespace": wrong}):
        with pytest.raises(ConfigurationError, match=str(wrong)):
            Caps(**caps)


@pytest.fixture
def world(session: Session, settings: KafkaSettings, topic: Callable[..., str]) -> PooledWorld:
    load = LoadIdentity("test", f"counted-{next(_names)}", "first")
    return PooledWorld(session, settings, topic(partitions=2), load)


def test_the_report_counts_at_the_broker(world: PooledWorld) -> None:
    world.load_all(["a"], ["b"])
    own = world.of("own")
    own.naming = INCREMENTING
    own.load_all(["c"])
    report = ids_report(world.session)
    assert report.expiration_ms == 7 * 86_400_000
    (mine,) = [n for n in report.names if n.load_name == world.load.name]
    assert (mine.pooled, mine.incrementing, mine.slots, mine.leased) == (2, 1, 1, 0)
    assert mine.oldest_s is not None and mine.oldest_s < 600


def test_at_the_cap_an_attempt_is_refused_before_it_is_taken(world: PooledWorld) -> None:
    world.load_all(["a"], ["b"])
    next_one = world.of("next")
    next_one.session.ledger.begin(next_one.load, owner=RUN)
    for caps in (Caps(per_name=2), Caps(per_namespace=2)):
        with pytest.raises(ConfigurationError, match="the cap is 2"):
            submit(world.session, next_one.load, owner=RUN, deadline_ms=10**13, caps=caps)
    assert not world.session.ledger.attempts(next_one.load)[0].is_submitted
    # its ids are there already: nothing is added
    row = submit(
        world.session, next_one.load, owner=RUN, naming=POOLING, deadline_ms=10**13, caps=Caps(per_name=2)
    )
    assert row.slot == 0
    with pytest.raises(ConfigurationError, match="the cap is 2"):
        check_caps(world.session, world.of("third").load, POOLING, Caps(per_name=2))
    # a load that is committed adds none
    assert submit(world.session, world.load, owner=RUN, caps=Caps(per_name=2)).verdict is not None


def test_near_the_cap_there_is_a_warning(world: PooledWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.load_all(["a"], ["b"], ["c"], ["d"])
    with caplog.at_level(logging.WARNING, "airflow_kafka_eos"):
        check_caps(world.session, world.load, INCREMENTING, Caps(per_name=6, per_namespace=None))
        assert "transactional ids" not in caplog.text
        check_caps(world.session, world.load, INCREMENTING, Caps(per_name=5, per_namespace=None))
    assert "know 4 transactional ids of load name" in caplog.text
