"""A listing of the namespace that ACLs limit is said to be limited: Kafka leaves ids out without a word."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming
from airflow_kafka_eos.naming import name_prefix
from airflow_kafka_eos.protocol.cleanup.namespace import find
from airflow_kafka_eos.protocol.guards.id_caps import Caps, check_caps, ids_report
from airflow_kafka_eos.protocol.guards.ownership import hidden_by_acls
from airflow_kafka_eos.protocol.metrics import measure
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.acls import Right, allow_exactly
from tests.kafka.least_support import LEAST, NAMESPACE, PRINCIPAL, READ_TOPIC, WRITE_TOPIC, sweep_to_the_end
from tests.kafka.least_support import ledger_path as ledger_path
from tests.kafka.least_support import secured as secured
from tests.kafka.least_support import session as session
from tests.kafka.least_support import world as world
from tests.protocol.world import World
from tests.secured import Secured

pytestmark = pytest.mark.broker

OTHERS = "seen"
DAY = timedelta(days=1)


@pytest.fixture
def limited(world: World, secured: Secured) -> Iterator[str]:
    """A transaction is open, and only the ids of another load name may be seen; its transactional id."""
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    other = replace(world, load=LoadIdentity(NAMESPACE, OTHERS, world.load.key))
    other.open_attempt()
    entry = world.write(reference(world.session, world.open_attempt()), ["hidden"])
    assert entry.transaction is not None
    allow_exactly(secured.plain, PRINCIPAL, {of_name(world, OTHERS), READ_TOPIC, WRITE_TOPIC})
    yield entry.transaction.transactional_id
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    for one in (world, other):
        sweep_to_the_end(one)
    assert world.open_ids() == []


def of_name(world: World, name: str) -> Right:
    return Right("WRITE", "TransactionalId", f"{name_prefix(NAMESPACE, world.session.ledger.ledger_id, name)}*")


def test_leftovers_metrics_and_the_report_of_ids_notice(
    world: World, secured: Secured, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = find(world.session, abandoned_after=DAY)
    assert found.loads == {} and found.unknown == ()  # it looks clean
    assert isinstance(found.hidden, AccessError)
    assert f"prefixed {NAMESPACE}.{world.session.ledger.ledger_id}." in found.hidden.remedy
    with pytest.raises(AccessError, match="more may be open than is shown"):
        measure(world.session)
    assert isinstance(ids_report(world.session).hidden, AccessError)
    with caplog.at_level(logging.WARNING):
        check_caps(world.session, world.load, TransactionNaming.INCREMENTING, Caps())
    assert "some may be hidden" in caplog.text


def test_rights_on_each_name_of_the_ledger_show_all_of_it(world: World, secured: Secured, limited: str) -> None:
    names = {row.load.name for row in world.session.ledger.loads(NAMESPACE)}
    every = {of_name(world, name) for name in names}
    allow_exactly(secured.plain, PRINCIPAL, {*every, READ_TOPIC})
    assert hidden_by_acls(world.session) is None
    assert measure(world.session).open_transactions == 1
    # but its pooled ids, which do not begin with a key
    keys = Right("WRITE", "TransactionalId", f"{of_name(world, world.load.name).name.removesuffix('*')}%7E.*")
    allow_exactly(secured.plain, PRINCIPAL, {*every - {of_name(world, world.load.name)}, keys, READ_TOPIC})
    assert hidden_by_acls(world.session) is not None


def test_all_rights_hide_nothing(world: World, secured: Secured) -> None:
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    assert hidden_by_acls(world.session) is None
    assert find(world.session, abandoned_after=DAY).hidden is None


@pytest.fixture
def command(
    secured: Secured,
    ledger_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv(LEDGER_VARIABLE, f"sqlite:///{ledger_path}")
    file = tmp_path / "client.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in secured.loader_extra().items()))

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "--namespace", NAMESPACE, "--command-config", str(file)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("words", [("transactions", "list"), ("cleanup", "--dry-run"), ("ids", "report")], ids=" ".join)
def test_commands_say_it_and_do_not_end_well(
    words: tuple[str, ...], world: World, secured: Secured, limited: str, command: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = command(*words)
    assert (code, limited in out) == (2, False)
    where, line = err.splitlines()
    assert where.startswith("ledger ")
    assert line.startswith("airflow-kafka-eos: THIS MAY NOT BE ALL: ") and "WRITE" in line
    shown = json.loads(command(*words, "--output", "json")[1])
    assert "more may be open than is shown" in shown["hidden"]
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    code, out, err = command(*words)
    assert (code, err.splitlines()) == (0, [where])
