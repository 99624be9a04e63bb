"""The least set of ACLs of docs/acls.md: a load passes with it, and without any one of it the error names that one.

By SASL_SSL with SCRAM, with the StandardAuthorizer, as a principal that is no superuser. What was refused has lost
nothing: the right is given back, and the load arrives once; what was left open is swept.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.manifest import Manifest, dump
from airflow_kafka_eos.naming import prefix
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.protocol.stages.visible import lags
from tests.acls import Right, allow_exactly
from tests.kafka.least_support import (
    AN_ID,
    DESCRIBE_IDS,
    LEAST,
    NAMESPACE,
    OUR_IDS,
    PARTS,
    PREPARE,
    PRINCIPAL,
    READ_TOPIC,
    TWO_PHASE,
    WRITE_IDS,
    WRITE_TOPIC,
    kinds_of,
    least,
    pooled,
    seen_by_all,
    skip_unless_possible,
    sweep_to_the_end,
)
from tests.kafka.least_support import ledger_path as ledger_path
from tests.kafka.least_support import secured as secured
from tests.kafka.least_support import session as session
from tests.kafka.least_support import world as world
from tests.protocol.world import RUN, World
from tests.secured import SCRAM_PASSWORD, Secured

pytestmark = pytest.mark.broker

DOCS = Path(__file__).resolve().parents[2] / "docs" / "acls.md"


@dataclass(frozen=True)
class Case:
    """``taken`` is missing while ``step`` is run, which says ``says``."""

    kind: str
    taken: Right
    step: str
    says: str
    #: what is granted meanwhile and not otherwise
    instead: tuple[Right, ...] = ()

    def __str__(self) -> str:
        seen = " but seen" if self.instead else ""
        return f"{self.kind}-{self.step}-{self.taken.operation} on {self.taken.resource}{seen}"


_SEEN = (DESCRIBE_IDS,)
CASES = [
    *(Case(kind, WRITE_IDS, "prepare", rf"WRITE.* on {OUR_IDS}") for kind in PREPARE),
    *(Case(kind, WRITE_IDS, "prepare", rf"WRITE.* on {OUR_IDS}", _SEEN) for kind in PREPARE),
    *(Case(kind, WRITE_TOPIC, "prepare", r"Grant .* WRITE on Topic least-\d+") for kind in PREPARE),
    Case("two phases", TWO_PHASE, "prepare", rf"TWO_PHASE_COMMIT on {OUR_IDS}"),
    Case("scope load", READ_TOPIC, "prepare", r"refused READ on Topic least-\d+.*Grant .* READ on Topic least-\d+"),
    Case("arrow", READ_TOPIC, "decide", r"refused READ on Topic least-\d+"),
    Case("arrow", WRITE_IDS, "decide", rf"refused DESCRIBE on {AN_ID}.*WRITE includes it"),
    Case("arrow", READ_TOPIC, "commit", r"refused READ on Topic least-\d+"),
    Case("arrow", WRITE_IDS, "commit", rf"refused WRITE on {AN_ID}", _SEEN),
    Case("arrow", WRITE_IDS, "sweep", rf"refused DESCRIBE on {AN_ID}.*WRITE includes it"),
    Case("arrow", WRITE_IDS, "sweep", rf"refused WRITE on {AN_ID}", _SEEN),
    Case("arrow", READ_TOPIC, "loaded", r"DESCRIBE.* on Topic least-\d+"),
]


def granted_by_remedies(
    step: Callable[[], object], refused: AccessError, rights: set[Right], secured: Secured
) -> None:
    """Take the remedy at its word, as somebody does who grants just that; who may see may not yet write."""
    for _ in range(3):
        rights |= asked_for(refused.remedy)
        allow_exactly(secured.plain, PRINCIPAL, rights)
        try:
            step()
            return
        except AccessError as e:
            refused = e
    raise refused


def asked_for(remedy: str) -> set[Right]:
    """The ACLs that a remedy names."""
    found = re.search(
        r"connection ([A-Z_]+)(?: and ([A-Z_]+))?(?: \([^)]*\))? on "
        r"(?:Topic (?P<topic>[\w-]+)|TransactionalIds prefixed (?P<prefix>\S+\.))",
        remedy,
    )
    assert found, remedy
    kind, name = ("Topic", found["topic"]) if found["topic"] else ("TransactionalId", f"{found['prefix']}*")
    return {Right(operation, kind, name) for operation in found.groups()[:2] if operation}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_one_the_error_names_it_and_nothing_is_lost(case: Case, world: World, secured: Secured) -> None:
    def steps() -> Iterator[tuple[str, Callable[[], object]]]:
        """The load's, each with what it needs of the one before."""
        made: list[Manifest] = []
        yield "prepare", lambda: made.append(PREPARE[case.kind](world, *PARTS))
        if case.step == "sweep":
            yield "sweep", lambda: sweep(world.session, world.load, up_to=1, by=RUN)
            return
        yield "decide", lambda: world.decide(made[-1])
        yield "commit", world.commit
        yield "loaded", lambda: lags(world.session, world.load)

    skip_unless_possible(case.kind, secured)
    granted = least(case.kind)
    allow_exactly(secured.plain, PRINCIPAL, granted)
    for name, step in steps():
        if name == case.step:
            # loaded describes topics only, which WRITE includes too
            taken = {case.taken, WRITE_TOPIC} if case.step == "loaded" else {case.taken}
            left = {*granted - taken, *case.instead}
            allow_exactly(secured.plain, PRINCIPAL, left)
            with pytest.raises(AccessError, match=case.says) as caught:
                step()
            assert SCRAM_PASSWORD not in str(caught.value)
            granted_by_remedies(step, caught.value, left, secured)
            allow_exactly(secured.plain, PRINCIPAL, granted)
            continue
        step()
    sweep_to_the_end(world)
    assert world.open_ids() == []
    assert seen_by_all(world, secured).visible() == ([] if case.step == "sweep" else ["a", "b", "c"])


def test_each_right_of_the_least_set_is_taken_away() -> None:
    assert {case.taken for case in CASES} == LEAST | {TWO_PHASE}


@pytest.mark.parametrize("kind", ["confluent", "arrow"])
def test_spark_needs_no_right_to_read_and_airflow_none_to_write(kind: str, world: World, secured: Secured) -> None:
    allow_exactly(secured.plain, PRINCIPAL, {WRITE_IDS, WRITE_TOPIC})
    manifest = PREPARE[kind](world, *PARTS)
    allow_exactly(secured.plain, PRINCIPAL, {WRITE_IDS, READ_TOPIC})
    world.decide(manifest)
    world.commit()
    assert lags(world.session, world.load) == []
    assert seen_by_all(world, secured).visible() == ["a", "b", "c"]


def test_the_docs_list_it() -> None:
    table = DOCS.read_text().partition("## The least set")[2].partition("kafka-acls.sh")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    documented = [(operation.strip(), resource.split()[0].strip(",")) for operation, resource in rows[1:]]
    assert sorted(documented) == sorted((right.operation, right.resource) for right in {*LEAST, TWO_PHASE})


def test_a_listing_limited_by_acls_is_told(world: World, secured: Secured) -> None:
    """Kafka leaves out what one may not describe: a sweep of what is left would call it clean."""
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    ref = reference(world.session, world.open_attempt())
    hidden = world.write(ref, ["hidden"], 1)  # a Spark task that never reported
    start = prefix(world.load, ref.ledger_id)
    allow_exactly(secured.plain, PRINCIPAL, {Right("WRITE", "TransactionalId", f"{start}1-0-*"), READ_TOPIC})
    assert world.session.coordinator.list_open(start) == []
    with pytest.raises(AccessError, match=r"what is open cannot be listed: .* DESCRIBE on TransactionalId") as caught:
        sweep(world.session, world.load, up_to=1, by=RUN)
    assert f"prefixed {NAMESPACE}.{ref.ledger_id}." in caught.value.remedy
    # the load's own prefix is enough
    allow_exactly(secured.plain, PRINCIPAL, {Right("WRITE", "TransactionalId", f"{start}*"), READ_TOPIC})
    assert hidden.transaction is not None
    assert sweep(world.session, world.load, up_to=1, by=RUN).aborted == [hidden.transaction.transactional_id]
    sweep_to_the_end(world)
    assert world.open_ids() == []
    assert world.session.ledger.load(world.load).state is LoadState.ABORTED  # type: ignore[union-attr]


def test_pooled_ids_must_be_seen_too(world: World, secured: Secured) -> None:
    """They do not begin with the load's key."""
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    mine = pooled(replace(world, load=LoadIdentity(NAMESPACE, f"pooled-{world.load.key}", "key")))
    ref = mine.driver()
    hidden = mine.task(ref, ["hidden"])  # never reported
    start = prefix(mine.load, ref.ledger_id)
    allow_exactly(secured.plain, PRINCIPAL, {Right("WRITE", "TransactionalId", f"{start}*"), READ_TOPIC})
    with pytest.raises(AccessError, match=r"what is open cannot be listed: .* TransactionalId \S+\.pooled-\S+\.p"):
        sweep(mine.session, mine.load, up_to=1, by=RUN)
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    assert hidden.transaction is not None
    assert sweep(mine.session, mine.load, up_to=1, by=RUN).aborted == [hidden.transaction.transactional_id]
    sweep_to_the_end(mine)
    assert mine.open_ids() == []


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Every logger at DEBUG, those with a level of their own too."""
    names = [n for n, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    for name in (None, *names):
        caplog.set_level(logging.DEBUG, name)
    yield caplog


def test_no_log_manifest_or_ledger_row_has_the_password(
    world: World, secured: Secured, ledger_path: Path, everything_logged: pytest.LogCaptureFixture
) -> None:
    allow_exactly(secured.plain, PRINCIPAL, set().union(*map(least, kinds_of(secured))))
    # connections of this test's own, so that the logins are among what is logged
    with connect(secured.loader(), f"sqlite:///{ledger_path}", NAMESPACE) as session:
        logging.getLogger("kafka").setLevel(logging.DEBUG)
        mine = replace(world, session=session)
        for kind in kinds_of(secured):
            each = replace(mine, load=replace(world.load, key=f"{world.load.key}-{kind}"))
            manifest = PREPARE[kind](each, *PARTS)
            each.decide(manifest)
            each.commit()
            assert SCRAM_PASSWORD not in dump(manifest)
    assert "kafka" in {record.name.partition(".")[0] for record in everything_logged.records}
    assert SCRAM_PASSWORD not in everything_logged.text
    rows = b"".join(file.read_bytes() for file in ledger_path.parent.glob(f"{ledger_path.name}*"))
    assert b"key-" in rows
    assert SCRAM_PASSWORD.encode() not in rows
