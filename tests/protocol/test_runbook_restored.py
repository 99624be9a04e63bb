"""The steps of docs/howto-on-call.md behind a ledger that was restored, one after the other, as printed, in a shell."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import dump
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import begin, reference
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.kafka_tools import Shell
from tests.protocol.test_restored import backup, checkpoint
from tests.protocol.test_restored import own as own
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker

#: commands of the page that stand on a line of their own, and are tried here
PRINTED = ('airflow-kafka-eos loads set-committed NAME KEY --reason "in the topic, restored on Monday"',)

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto-on-call.md").read_text(encoding="utf-8")
STEPS = _PAGE.split("\n## The ledger was restored\n")[1].split("\n## ")[0]


def test_step_by_step_readers_go_on_and_nothing_is_there_twice(own: World, tmp_path: Path, shell: Shell) -> None:
    decided, torn, unknown, whole, known, opened, twice = (
        replace(own, load=LoadIdentity(own.load.namespace, f"{own.load.name}-{name}", own.load.key))
        for name in ("decided", "torn", "unknown", "whole", "known", "opened", "twice")
    )
    decided.decide(decided.prepare(["decided"]))
    begun = reference(own.session, torn.open_attempt())
    known.prepare(["known"])
    begin(own.session, opened.load, owner=RUN)
    twice.prepare(["twice, 1"])
    checkpoint(own)
    backup(tmp_path)
    # all that the ledger forgets
    half = torn.manifest(begun, [torn.write(begun, [v], n) for n, v in enumerate(["torn, visible", "torn, open"])])
    ManifestStore(str(tmp_path / "manifests")).write(begun, dump(half))
    own.session.coordinator.end_many(half.transactions[:1], Verdict.COMMIT)
    unknown.prepare(["unknown"])
    whole.load_all(["whole"])
    opened.prepare(["opened"])
    twice.prepare(["twice, 2"])

    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": own.settings.bootstrap_servers}}
    url = f"sqlite:///{tmp_path}/backup.db"

    def run(printed: str, code: int = 0, more: str = "", **put_in: str) -> str:
        """A command that the steps print, or that this page's step means by "the same with"."""
        assert f"`{printed}`" in STEPS or f"    {printed}\n" in STEPS, printed
        for name, value in {"…": own.settings.bootstrap_servers, **put_in}.items():
            printed = re.sub(rf"(?<![\w:-]){name}(?![\w:-])", value, printed)
        ran = shell(
            printed + more,
            **{
                LEDGER_VARIABLE: url,
                "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(connection),
                "AIRFLOW__KAFKA_EOS__NAMESPACE": own.load.namespace,
                "AIRFLOW__KAFKA_EOS__MANIFEST_DIR": str(tmp_path / "manifests"),
            },
        )
        assert ran.code == code, ran
        return ran.out

    listed = run("airflow-kafka-eos loads list --state COMMITTING")
    assert decided.load.name in listed and listed.count(own.load.name) == 1
    refused = shell("airflow-kafka-eos ledger new-id --yes", **{LEDGER_VARIABLE: url})
    assert refused.code == 2 and decided.load.name in refused.err, "it comes behind the steps before it"
    run("airflow-kafka-eos loads recover NAME KEY", NAME=decided.load.name, KEY=decided.load.key)
    found = json.loads(run("airflow-kafka-eos ledger compare", 1, " --output json"))
    suffixes = {one["name"].removeprefix(f"{own.load.name}-"): one for one in found}
    assert {name: (len(one["committed"]), len(one["open"])) for name, one in suffixes.items()} == {
        "torn": (1, 1), "unknown": (0, 1), "whole": (1, 0), "known": (0, 1), "opened": (0, 1), "twice": (0, 1),
    }  # fmt: skip
    assert {one["key"] for one in found} == {own.load.key}
    back = "airflow-kafka-eos loads reinstate NAME KEY"
    assert "COMMITTED" in run(back, more=" --yes", NAME=torn.load.name, KEY=torn.load.key)
    run(back, 1, " --yes", NAME=whole.load.name, KEY=whole.load.key)  # no manifest
    found = json.loads(run("airflow-kafka-eos ledger compare", 1, " --output json"))
    # step 5: of these the ledger knows the load, and may have forgotten an attempt of it
    assert {one["name"] for one in found if one["state"] and not one["committed"]} == {
        world.load.name for world in (known, opened, twice)
    }
    cleanup = "airflow-kafka-eos cleanup NAME KEY"
    for world, code in ((known, 0), (opened, 1), (twice, 1)):
        run(cleanup, code, " --yes", NAME=world.load.name, KEY=world.load.key)
    found = json.loads(run("airflow-kafka-eos ledger compare", 1, " --output json"))
    names = [name for one in found for name in one["open"]]
    assert len(names) == 3 and sorted(names) == own.open_ids()
    for name in names:
        run("kafka-transactions.sh --bootstrap-server … forceTerminateTransaction --transactionalId ID", ID=name)
    there = ["decided", "torn, open", "torn, visible", "whole"]
    assert own.visible() == there, "readers stand still for nothing"
    (says,) = PRINTED
    refused = shell(
        says.replace("NAME KEY", f"{whole.load.name} {whole.load.key}") + " --yes",
        **{LEDGER_VARIABLE: url, "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(connection)},
        **{"AIRFLOW__KAFKA_EOS__NAMESPACE": own.load.namespace},
    )
    assert refused.code == 1 and "new-id" in refused.err, "it comes behind the new id"
    run("airflow-kafka-eos ledger new-id", more=" --yes")
    shown = run("airflow-kafka-eos ledger compare", 1, f" --ledger-id {begun.ledger_id}")
    assert "whole" in shown and "unknown" not in shown
    said = run(says, more=" --yes", NAME=whole.load.name, KEY=whole.load.key)
    assert "COMMITTED" in said and "restored on Monday" in said
    assert "airflow" not in run("airflow-kafka-eos ids report")
    run("airflow-kafka-eos cursors list")
    with Ledger.open(url) as ledger:
        assert ledger.ledger_id != begun.ledger_id
    with connect(own.settings, url, own.load.namespace) as session:
        replace(unknown, session=session).load_all(["unknown"])
        again = replace(whole, session=session).open_attempt()
        assert again.verdict is Verdict.COMMIT, "a run that Airflow makes once more writes nothing"
    assert own.visible() == sorted([*there, "unknown"])

