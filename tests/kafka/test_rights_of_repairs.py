"""A right that is missing while a decided load is repaired is named; once granted, the repair goes through.

Rule: repair-replaces-lost-row.

Nothing is lost meanwhile, nothing of the repair stays open, and the load is never called done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.producer.arrow.sender import Sender
from airflow_kafka_eos.kafka.producer.copier import Copier
from airflow_kafka_eos.ledger.rows import RepairState
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from tests.acls import Right, allow_exactly
from tests.kafka.least_support import (
    AN_ID,
    DESCRIBE_IDS,
    LEAST,
    PRINCIPAL,
    READ_TOPIC,
    WRITE_IDS,
    WRITE_TOPIC,
    by_arrow,
    seen_by_all,
    sweep_to_the_end,
)
from tests.kafka.least_support import ledger_path as ledger_path
from tests.kafka.least_support import secured as secured
from tests.kafka.least_support import session as session
from tests.kafka.least_support import world as world
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import lose, state
from tests.protocol.world import World
from tests.secured import Secured

pytestmark = pytest.mark.broker


#: by their keys, the first has records in both partitions
FIRST, SECOND = [f"a{n:02}" for n in range(20)], ["c"]


@dataclass(frozen=True)
class Case:
    """``taken`` is missing from the repair's beginning on, or from its first copied partition on."""

    taken: Right
    says: str
    meanwhile: bool = False
    #: what is granted instead
    instead: tuple[Right, ...] = ()

    def __str__(self) -> str:
        when = "while it copies" if self.meanwhile else "from the beginning"
        return f"{self.taken.operation} on {self.taken.resource}{' but seen' if self.instead else ''} {when}"


_SEEN = (DESCRIBE_IDS,)
CASES = [
    Case(READ_TOPIC, r"refused READ on Topic least-\d+.*Grant .* READ on Topic least-\d+"),
    Case(WRITE_TOPIC, r"refused WRITE on Topic least-\d+.*Grant .* WRITE on Topic least-\d+"),
    Case(WRITE_IDS, rf"refused \w+ on {AN_ID}.*Grant .* on TransactionalIds prefixed least\."),
    Case(WRITE_IDS, rf"refused WRITE on {AN_ID}.*Grant .* WRITE on TransactionalIds prefixed least\.", instead=_SEEN),
    Case(READ_TOPIC, r"refused READ on Topic least-\d+", meanwhile=True),
    Case(WRITE_TOPIC, r"refused WRITE on Topic least-\d+", meanwhile=True),
    Case(WRITE_IDS, rf"refused \w+ on {AN_ID}", meanwhile=True),
    Case(WRITE_IDS, rf"refused WRITE on {AN_ID}", meanwhile=True, instead=_SEEN),
]


def lose_one(world: World) -> None:
    """A decided load, one of whose two transactions is committed and the other aborted: it is REPAIRING."""
    manifest = by_arrow(world, FIRST, SECOND)
    assert len(manifest.prepared[0].writes) == 2
    world.decide(manifest)
    lose(world, manifest.transactions[0])
    wait_until(lambda: not commit_pass(world.session, world.load, 1).open, "the commit of the other one")
    assert state(world) is LoadState.REPAIRING


def take_while_it_copies(taking: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the first of its two partitions: the new transaction is open by then."""
    copying = Copier._copy_partition

    def take(copier: Copier, sender: Sender, *arguments: object) -> None:
        copying(copier, sender, *arguments)  # type: ignore[arg-type]
        sender.flush()
        taking()

    monkeypatch.setattr(Copier, "_copy_partition", take)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_missing_right_is_named_and_the_repair_goes_through_once_granted(
    case: Case, world: World, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    lose_one(world)

    def take() -> None:
        allow_exactly(secured.plain, PRINCIPAL, {*LEAST - {case.taken}, *case.instead})

    with monkeypatch.context() as patched:
        if case.meanwhile:
            take_while_it_copies(take, patched)
        else:
            take()
        with pytest.raises(AccessError, match=case.says):
            world.commit()
    assert state(world) is LoadState.REPAIRING
    assert seen_by_all(world, secured).visible() == SECOND
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    repairs = world.session.ledger.repairs(world.load)
    # who may not see what was repaired before opens none
    blind = case.taken == WRITE_IDS and not (case.instead or case.meanwhile)
    assert [r.state for r in repairs] == ([] if blind else [RepairState.UNDECIDABLE])
    # what it had open was ended, where it might end it
    left = [r.transactional_id for r in repairs] if case.meanwhile and case.taken == WRITE_IDS else []
    assert world.open_ids() == left
    world.commit()
    assert (world.open_ids(), state(world)) == ([], LoadState.COMMITTED)
    assert seen_by_all(world, secured).visible() == [*FIRST, *SECOND]
    assert [r.state for r in world.session.ledger.repairs(world.load)][-1] is RepairState.ADOPTED


def test_what_a_repair_could_not_end_cleanup_ends_once_it_may(
    world: World, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its right to end is taken while it copies: what it has open is undecidable, and the broker's for 15 minutes."""
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    lose_one(world)
    with monkeypatch.context() as patched:
        take_while_it_copies(
            lambda: allow_exactly(secured.plain, PRINCIPAL, {READ_TOPIC, DESCRIBE_IDS}), patched
        )
        with pytest.raises(AccessError):
            world.commit()
    (repair,) = world.session.ledger.repairs(world.load)
    assert repair.state is RepairState.UNDECIDABLE
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    assert world.open_ids() == [repair.transactional_id]
    sweep_to_the_end(world)
    assert world.open_ids() == []
    assert state(world) is LoadState.REPAIRING
    world.commit()
    assert seen_by_all(world, secured).visible() == [*FIRST, *SECOND]
