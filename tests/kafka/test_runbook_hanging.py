"""Every command of docs/howto-on-call.md about hanging transactions, as printed, by a shell and Kafka's own tools."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.hanging import Whose, find
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.cli.test_prune import PRINTED as PRUNING
from tests.cli.test_upgrading import PRINTED as UPGRADING
from tests.kafka.hanging_support import SharedTopic
from tests.kafka.hanging_support import lax as lax
from tests.kafka.hanging_support import shared as shared
from tests.kafka.least_support import NAMESPACE, PRINCIPAL, sweep_to_the_end
from tests.kafka.open_transactions import wait_until
from tests.kafka_tools import Shell
from tests.protocol.forgetful import decide_anyway, end, prepare_forgotten, shown
from tests.protocol.late import produce_late
from tests.protocol.test_runbook_restored import PRINTED as RESTORED
from tests.protocol.world import World, foreign_transaction
from tests.secured import SCRAM_PASSWORD

pytestmark = pytest.mark.broker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto-on-call.md").read_text(encoding="utf-8")
#: commands that stand on a line of their own
PRINTED = {line.strip() for line in PAGE.splitlines() if re.match(r" {4,}(kafka-|airflow-kafka-eos )", line)}

HANGING = "airflow-kafka-eos transactions hanging --topic T --running-longer-than 0s"
END_OURS = f"{HANGING} --abort"
SEE_IDS = (
    "kafka-acls.sh --bootstrap-server … --add --allow-principal User:loads --operation Describe "
    "--transactional-id '*'"
)
SEE_CLUSTER = (
    "kafka-acls.sh --bootstrap-server … --add --allow-principal User:loads --operation Describe "
    "--operation DescribeConfigs --cluster"
)
SEE_COORDINATORS = (
    "kafka-acls.sh --bootstrap-server … --add --allow-principal User:loads --operation Describe "
    "--topic __transaction_state"
)
LIST = "kafka-transactions.sh --bootstrap-server … list"
COORDINATORS = (
    "kafka-topics.sh --bootstrap-server … --describe --unavailable-partitions --topic __transaction_state"
)
DESCRIBE = "airflow-kafka-eos transactions describe ID"
RECOVER = "airflow-kafka-eos loads recover NAME KEY"
GIVE_UP = "airflow-kafka-eos loads give-up NAME KEY --reason …"
ABORT = "kafka-transactions.sh --bootstrap-server … abort --topic T --partition P --start-offset OFFSET"
TERMINATE = "kafka-transactions.sh --bootstrap-server … forceTerminateTransaction --transactionalId ID"

Run = Callable[..., str]
#: there a transaction of ours can hang; each start of one of Kafka's tools takes a second and a half
ON_OLD = pytest.mark.parametrize("lax", ["3.9.2"], indirect=True)


def test_the_page_prints_these_and_no_others() -> None:
    grants = {SEE_IDS, SEE_CLUSTER, SEE_COORDINATORS}
    elsewhere = {*PRUNING, *UPGRADING, *RESTORED}  # tried in test_prune.py, test_upgrading.py, test_runbook_restored.py
    assert {HANGING, END_OURS, LIST, COORDINATORS, ABORT, TERMINATE} | grants | elsewhere == PRINTED
    assert re.findall(r"`kafka-transactions\.sh .*`", PAGE) == []  # none inside a sentence


def filled(line: str, **put_in: object) -> str:
    """With what its capital letters stand for."""
    for name, value in put_in.items():
        line = re.sub(rf"(?<![\w:-]){name}(?![\w:-])", str(value), line)
    return line


@pytest.fixture
def run(shell: Shell, shared: SharedTopic) -> Run:
    """Runs a line as an administrator would, with what stands for something put in."""

    def run(line: str, **put_in: object) -> str:
        where = {"…": shared.broker.plain.bootstrap_servers, "T": shared.topic}
        ran = shell(filled(line, **where, **put_in))
        assert ran.code == 0, ran
        return ran.out

    return run


@pytest.fixture
def world(shared: SharedTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Our own load there, in the ledger that commands find; who runs them may do all."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    monkeypatch.setenv("AIRFLOW__KAFKA_EOS__NAMESPACE", NAMESPACE)
    with connect(shared.everybody, url, NAMESPACE) as session:
        yield World(session, shared.everybody, shared.topic, LoadIdentity(NAMESPACE, "orders", shared.topic))


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a line of ours with the login of an Airflow connection."""

    def run(line: str, extra: dict[str, str], *more: str, **put_in: object) -> tuple[int, str]:
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        capsys.readouterr()
        program, *arguments = shlex.split(filled(line, **put_in))
        assert program == "airflow-kafka-eos"
        return main([*arguments, *more]), capsys.readouterr().out

    return run


@ON_OLD
def test_from_may_be_alive_to_the_end_of_what_hangs(
    shared: SharedTopic, run: Run, ours: Callable[..., tuple[int, str]], world: World
) -> None:
    at_work = shared.begin(f"billing-{shared.topic}", 0)
    stopped = shared.hang(f"orders-{shared.topic}", 1)
    shared.allow()
    login = shared.broker.loader_extra()
    code, out = ours(HANGING, login, T=shared.topic)
    assert code == 2 and out.count("MAY BE ALIVE") == 2
    # Kafka's own tool is as blind with this login, and calls the live one hanging
    blind = run(f"kafka-transactions.sh {_java_login(shared)} find-hanging --topic T --max-transaction-timeout 0")
    (alive,) = shared.open(0)
    assert f"{shared.topic}\t0" in re.sub(" +", "", blind) and str(alive.producer_id) in blind

    for line in (SEE_IDS, SEE_CLUSTER, SEE_COORDINATORS):
        run(line, **{"User:loads": PRINCIPAL})
    code, out = ours(HANGING, login, T=shared.topic)
    assert code == 1 and "MAY BE ALIVE" not in out and f"{shared.topic}-0" not in out
    (hangs,) = shared.open(1)
    where = {"…": login["bootstrap.servers"], "T": shared.topic, "P": 1, "OFFSET": hangs.txn_start_offset}
    assert re.findall(r"kafka-transactions\.sh .*", out) == [filled(ABORT, **where)]

    assert re.search(rf"billing-{shared.topic}\s+\d+\s+{alive.producer_id}\s+Ongoing", run(LIST))
    assert run(COORDINATORS) == ""
    assert f"`{DESCRIBE}`" in PAGE and "CompleteCommit" in ours(DESCRIBE, login, ID=stopped.transactional_id)[1]
    run(ABORT, P=1, OFFSET=hangs.txn_start_offset)
    assert shared.open(1) == []
    assert ours(HANGING, login, T=shared.topic)[0] == 0
    at_work.commit_transaction(60)
    assert world.visible() == ["alive", "alive"]


@ON_OLD
def test_ours_is_ended_and_what_no_ledger_has_is_force_terminated(
    run: Run, ours: Callable[..., tuple[int, str]], world: World
) -> None:
    ref = reference(world.session, world.open_attempt())
    name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 0)
    transaction, writes = world.write_arrow(name, ["a"], partition=0)
    sweep_to_the_end(world)
    code = produce_late(world.settings, transaction, writes[0].topic_partition, "late", 1)
    before = find(world.session, [writes[0].topic_partition], longer_than_ms=0)
    # with transaction version 2 the end has bumped the epoch, and nothing of it can hang
    assert (code, [h.whose for h in before]) in ((0, [Whose.OURS]), (47, []))
    login = {"bootstrap.servers": world.settings.bootstrap_servers}
    ours(END_OURS, login, "--yes", T=world.topic)
    assert find(world.session, [writes[0].topic_partition], longer_than_ms=0) == []

    gone = str(TransactionalId(replace(world.load, name="gone"), "0123456789", 1, 0, 0))
    foreign_transaction(world, gone)
    assert gone in world.open_ids()
    run(TERMINATE, ID=gone)
    assert world.open_ids() == []


@ON_OLD
def test_markers_that_a_coordinator_has_forgotten_are_looked_at_before_anything_is_ended_by_hand(
    run: Run, ours: Callable[..., tuple[int, str]], world: World
) -> None:
    login = {"bootstrap.servers": world.settings.bootstrap_servers}

    def markers(transaction: PreparedTransaction) -> tuple[int, str, list[tuple[str, ...]]]:
        code, out = ours(DESCRIBE, login, ID=transaction.transactional_id)
        (log,) = re.findall(r"^log +(.*)$", out, re.MULTILINE)
        return code, log, re.findall(rf"^({world.topic}-\d+) +(.*\S) *$", out.split("\nmarkers\n")[1], re.MULTILINE)

    zero, one = (f"{world.topic}-{n}" for n in range(2))
    everywhere = replace(world, load=replace(world.load, name="everywhere"))
    manifest = prepare_forgotten(everywhere, "a", known=[1])
    decide_anyway(everywhere, manifest)
    transaction = end(everywhere, manifest, Verdict.COMMIT)
    assert markers(transaction) == (0, "open", [(zero, "missing")])
    (hangs,) = shown(world, transaction)
    run(ABORT, P=0, OFFSET=hangs.txn_start_offset)
    assert markers(transaction) == (1, "lost", [(zero, "abort")])
    everywhere.commit()
    assert (world.visible(), len(world.session.ledger.repairs(everywhere.load))) == (["a"], 1)

    manifest = prepare_forgotten(world, "bc", known=[0])
    decide_anyway(world, manifest)
    transaction = end(world, manifest, Verdict.COMMIT)
    wait_until(lambda: markers(transaction)[2] == [(zero, "commit"), (one, "missing")], "the marker in one of them")
    assert markers(transaction)[:2] == (0, "open")  # which alone looks just as above
    assert ours(RECOVER, login, NAME=world.load.name, KEY=world.load.key)[0] == 0
    assert markers(transaction) == (0, "committed", [(zero, "commit"), (one, "commit")])
    assert (world.visible(), world.session.ledger.repairs(world.load)) == (["a", "b", "c"], [])


@ON_OLD
def test_another_ledgers_decided_load_is_completed_with_its_ledger_and_never_torn(
    ours: Callable[..., tuple[int, str]], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see one partition of it already: by an abort marker in the other one, half of it for good."""
    login = {"bootstrap.servers": world.settings.bootstrap_servers}
    url = f"{tmp_path}/theirs.db"
    Ledger.open(f"sqlite:///{url}", upgrade=True).close()
    monkeypatch.setenv("AIRFLOW_CONN_THEIRS", json.dumps({"conn_type": "sqlite", "host": url}))
    with connect(world.settings, f"sqlite:///{url}", NAMESPACE) as session:
        theirs = replace(world, session=session)
        manifest = prepare_forgotten(theirs, "ab", known=[1])
        decide_anyway(theirs, manifest)
        transaction = end(theirs, manifest, Verdict.COMMIT)
        wait_until(lambda: world.visible() == ["b"], "the marker in one of them")
        code, out = ours(HANGING, login, T=world.topic)
        assert code == 1 and "foreign" in out and transaction.transactional_id in out
        assert "kafka-transactions.sh" not in out and "write no marker by hand" in out
        assert f"ledger {session.ledger.ledger_id}" in out
        (there,) = re.findall(r"`(airflow-kafka-eos transactions hanging .*?)`", out)
        assert there == f"{HANGING.replace(' T', f' {world.topic}')} --namespace {NAMESPACE} --conn-id …"
        assert f"`{HANGING} --conn-id …`" in PAGE
        code, out = ours(there.replace("…", "theirs"), login)
        assert code == 1 and "ours, decided" in out and "loads recover" in out
        recover = ("--conn-id", "theirs")
        assert ours(RECOVER, login, *recover, NAME=world.load.name, KEY=world.load.key)[0] == 0
    assert world.visible() == ["a", "b"]
    assert ours(HANGING, login, T=world.topic)[0] == 0


@ON_OLD
def test_what_hangs_of_a_load_that_is_given_up_is_ended_by_the_commands_that_give_up_prints(
    ours: Callable[..., tuple[int, str]], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"bootstrap.servers": world.settings.bootstrap_servers}
    said: list[str] = []
    monkeypatch.setattr("airflow_kafka_eos.cli.loads.say", said.append)
    manifest = prepare_forgotten(world, "ab", known=[1])
    decide_anyway(world, manifest)
    end(world, manifest, Verdict.COMMIT)
    wait_until(lambda: world.visible() == ["b"], "the marker in one of them")
    cleanup = f"airflow-kafka-eos cleanup {world.load.name} {world.load.key} --namespace {NAMESPACE}"
    assert ours(GIVE_UP, login, "--yes", NAME=world.load.name, KEY=world.load.key, **{"…": "gone"})[0] == 0
    assert f"`{GIVE_UP}`" in PAGE
    refused, out = ours(cleanup, login, "--yes", "--output", "json")
    (error,) = [one["error"] for one in json.loads(out)["loads"]]
    printed = re.findall(r"`(airflow-kafka-eos .*?)`", error)
    assert refused == 1 and printed[1:] == [cleanup]
    assert [line.strip() for line in said if line.startswith("  ")] == printed
    assert ours(printed[0], login, "--yes")[0] == 0
    assert ours(printed[1], login, "--yes")[0] == 0
    (row,) = world.session.ledger.attempts(world.load)
    assert row.closed_at is not None and world.visible() == ["b"]


def _java_login(shared: SharedTopic) -> str:
    login = shared.broker.loader_extra()
    file = shared.broker.authority_file.with_name("client.properties")
    file.write_text(
        f"security.protocol={login['security.protocol']}\nsasl.mechanism={login['sasl.mechanism']}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="loader" password="{SCRAM_PASSWORD}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={shared.broker.authority_file}\n"
    )
    return f"--bootstrap-server {login['bootstrap.servers']} --command-config {file}"
