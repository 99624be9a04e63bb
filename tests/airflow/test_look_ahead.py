"""What begin looks at before a JVM starts: the group's own begin, on a real broker, ledger and connections."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.producer.produce import ProduceRequest

from airflow_kafka_eos import ExactlyOnceLoad, Transactions
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.operators.begin import BeginLoadOperator
from airflow_kafka_eos.protocol.stages.begin import submit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.acls import Right, allow_exactly
from tests.airflow.steps import CONTEXT, LOAD, a_prepared_load, connection, operator, run, session
from tests.kafka.offering_proxy import offering
from tests.secured import Secured

WRITE_IDS = Right("WRITE", "TransactionalId", "airflow.*")
WRITE_TOPIC = Right("WRITE", "Topic", "orders")
READ_TOPIC = Right("READ", "Topic", "orders")
JOB = "/nowhere/orders.py"


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def load(home: Path, topic: Callable[..., str], key: str) -> Callable[..., ExactlyOnceLoad]:
    """``load(**arguments)``: a group that lacks nothing, but for what the arguments change."""

    def make(**arguments: Any) -> ExactlyOnceLoad:
        with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1)):
            return ExactlyOnceLoad("load", **{"load_name": LOAD, "load_key": key, "sql": "SELECT 'v' value"}
                                   | ({} if "topics" in arguments else {"topics": [topic()]}) | arguments)  # fmt: skip

    return make


def attempts(key: str) -> list[Any]:
    with session() as opened:
        found: list[Any] = opened.ledger.attempts(LoadIdentity("airflow", LOAD, key))
        return found


def refused(group: ExactlyOnceLoad, key: str) -> str:
    """Begin fails for good; its attempt is closed, and says why."""
    with pytest.raises(AirflowFailException) as caught:
        group.begin.execute(CONTEXT)
    (row,) = attempts(key)
    assert (row.verdict, row.is_submitted, row.closed_at is None) == (Verdict.ABORT, False, False)
    told = str(caught.value).partition(f" [load {row.load}")[0]  # that is for whoever has it alone
    assert row.reason[:100] == told[:100]
    with session() as opened:
        assert opened.ledger.load(row.load).state is LoadState.ABORTED
    return str(caught.value)


def test_a_load_that_lacks_nothing_passes(load: Callable[..., ExactlyOnceLoad], key: str, home: Path) -> None:
    job = home / "job.py"
    job.write_text("def load(spark): ...")
    for attempt, of in enumerate(({}, {"sql": None, "job": str(job)}, {"sql": None, "job": "{{ 'job' }}.py:load"}), 1):
        group = load(load_key=f"{key}{attempt}", **of)
        assert group.begin.execute(CONTEXT)["attempt"] == 1


LACKING: dict[str, tuple[dict[str, Any], str]] = {
    "no topic": (
        {"topics": ["nowhere", "neither"]},
        "TopicError: topics=['neither', 'nowhere']: topic ",
    ),
    "one of Kafka's own": ({"topics": ["__consumer_offsets"]}, "is one of Kafka's own"),
    "no Spark connection": (
        {"spark_conn_id": "spark_defualt"},
        "ConfigurationError: spark_conn_id='spark_defualt': there is no Airflow connection of that name. Make it, or",
    ),
    "of another type": (
        {"spark_conn_id": "web"}, "spark_conn_id='web': the Airflow connection is of type 'http', not 'spark'"
    ),
    "no master": (
        {"spark_conn_id": "nothing"}, "spark_conn_id='nothing': the Airflow connection names no Spark master"
    ),
    "no job": (
        {"sql": None, "job": JOB}, f"ConfigurationError: job='{JOB}': the file {JOB} is not there on "
    ),
    "no job with a function": (
        {"sql": None, "job": "{{ 'jobs' }}/orders.py:daily"}, "job='jobs/orders.py:daily': the file "
    ),
    "a deploy mode that Spark has not": (
        {"spark_conn_id": "far", "manifest_dir": "/tmp"}, "deploy mode 'cluster' with Spark master 'spark://far:7077'"
    ),
    "a folder that is a file": (
        {"manifest_dir": f"{__file__}/manifests"}, f"manifest_dir='{__file__}/manifests': {__file__} on "
    ),
    "a folder that is none": ({"manifest_dir": "manifests"}, "manifest_dir 'manifests' is not absolute"),
    "no registry connection": (
        {"registry_conn_id": "regsitry"}, "registry_conn_id='regsitry': there is no Airflow connection of that name"
    ),
    "a short retention": (
        {"topics": ["short"]},
        "TopicError: topic short keeps records for retention.ms=60000, and the load may wait for its decision for "
        "hold_time=900000 ms",
    ),
    "a long hold time": (
        {"transactions": Transactions(hold_time=timedelta(days=1), two_phase_commit="off")},
        "a transaction timeout of 86400000 ms, broker 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lacking", LACKING)
def test_what_is_missing_is_named_before_a_jvm_starts(
    load: Callable[..., ExactlyOnceLoad], key: str, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "a short retention":
        kafka.create_topic("short", partitions=1, config={"retention.ms": "60000"})
    connection(monkeypatch, "web", "http", host="web")
    connection(monkeypatch, "nothing", "spark")
    connection(monkeypatch, "far", "spark", host="spark://far:7077", extra={"deploy-mode": "cluster"})
    arguments, says = LACKING[lacking]
    text = refused(load(**arguments), key)
    assert says in text
    assert "clear begin" in text or lacking in ("one of Kafka's own", "a deploy mode that Spark has not",
                                                "a folder that is none", "a long hold time")  # fmt: skip


def test_a_mistyped_kafka_setting_and_a_missing_spark_submit_are_named(
    load: Callable[..., ExactlyOnceLoad], key: str, kafka: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"bootstrap.servers": kafka.bootstrap_servers, "compresion.type": "zstd"}
    connection(monkeypatch, "typo", "kafka", extra=extra)
    assert "Kafka setting compresion.type is unknown" in refused(load(kafka_conn_id="typo"), key)
    monkeypatch.setenv("PATH", str(home))
    assert "there is no spark-submit on the PATH of " in refused(load(load_key="no spark"), "no spark")


def test_two_phase_commit_that_is_required_and_switched_off_is_named(
    load: Callable[..., ExactlyOnceLoad], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalKafka(broker_settings={"transaction.two.phase.commit.enable": "false"}) as without:
        connection(monkeypatch, "kafka_default", "kafka", extra={"bootstrap.servers": without.bootstrap_servers})
        without.create_topic("orders", partitions=1)
        group = load(topics=["orders"], transactions=Transactions(two_phase_commit="required"))
        assert "two-phase commit is switched off on broker 1 (transaction.two.phase" in refused(group, key)
        # where it is only wanted, hold_time counts
        group = load(topics=["orders"], load_key="auto", transactions=Transactions(hold_time=timedelta(days=1)))
        assert "a transaction timeout of 86400000 ms" in refused(group, "auto")


def test_brokers_that_lack_a_request_are_named(
    load: Callable[..., ExactlyOnceLoad], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only prepare sends, when begin looks ahead; what begin's own session needs, before an attempt is opened."""
    with LocalKafka() as kafka, offering(kafka) as proxies:
        connection(monkeypatch, "kafka_default", "kafka", extra={"bootstrap.servers": proxies[1].address})
        kafka.create_topic("orders", partitions=1)
        group = load(topics=["orders"])
        proxies[1].offer.highest[ProduceRequest.API_KEY] = 7
        text = refused(group, key)
        assert f"BrokerTooOldError: broker 1 ({proxies[1].address}) lacks" in text and "clear begin" in text
        assert "Produce (prepare, repair: writing records) goes up to v7, v9 is needed" in text
        proxies[1].offer.hidden.add(DescribeProducersRequest.API_KEY)
        with pytest.raises(AirflowFailException, match="DescribeProducers"):
            load(topics=["orders"], load_key="another").begin.execute(CONTEXT)
        proxies[1].offer.clear()
        assert attempts("another") == []


@pytest.mark.parametrize(
    ("granted", "says"),
    [
        ({WRITE_TOPIC, READ_TOPIC, WRITE_IDS}, ""),
        ({READ_TOPIC, WRITE_IDS}, "lacks WRITE on Topic orders (prepare writes to it). Grant it, then clear begin"),
        ({WRITE_TOPIC, WRITE_IDS}, "lacks READ on Topic orders (decide counts what was written"),
        ({Right("DESCRIBE", "Topic", "orders"), WRITE_IDS}, "Topic orders (prepare writes to it); and READ on Topic"),
        ({WRITE_IDS}, "DESCRIBE"),
        # who may only see his ids lists them, and can end none
        ({WRITE_TOPIC, READ_TOPIC, Right("DESCRIBE", "TransactionalId", "airflow.*")}, "refused WRITE on Transact"),
    ],
    ids=["all", "no WRITE", "no READ", "neither", "nothing", "no WRITE on ids"],
)  # fmt: skip
def test_a_missing_right_is_named_before_a_jvm_starts(
    load: Callable[..., ExactlyOnceLoad], key: str, secured: Secured, monkeypatch: pytest.MonkeyPatch,
    granted: set[Right], says: str,
) -> None:  # fmt: skip
    connection(monkeypatch, "kafka_default", "kafka", extra=secured.loader_extra())
    allow_exactly(secured.plain, "User:loader", granted)
    group = load(topics=["orders"])
    if not says:
        assert group.begin.execute(CONTEXT)["attempt"] == 1
    else:
        text = refused(group, key)
        assert text.startswith("AccessError: ")
        assert says in text
    allow_exactly(secured.plain, "User:loader", ())


def test_with_a_login_of_sparks_own_this_one_need_not_write(
    load: Callable[..., ExactlyOnceLoad], key: str, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver on Kubernetes has its settings from a secret."""
    secret = {"spark.kubernetes.driver.secretKeyRef.AIRFLOW_KAFKA_EOS_KAFKA": "kafka:settings"}
    connection(monkeypatch, "kafka_default", "kafka", extra=secured.loader_extra())
    connection(monkeypatch, "spark_default", "spark", host="k8s://https://far:1", extra={"deploy-mode": "cluster"})
    allow_exactly(secured.plain, "User:loader", {READ_TOPIC, WRITE_IDS})
    group = load(topics=["orders"], manifest_dir="/tmp", spark_args={"conf": secret}, sql=None, job=JOB)
    assert group.begin.execute(CONTEXT)["attempt"] == 1
    allow_exactly(secured.plain, "User:loader", ())


def test_what_a_task_before_prepare_may_still_make_is_no_error(
    load: Callable[..., ExactlyOnceLoad], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = load(topics=["nowhere"], sql=None, job=JOB)
    with group.dag:

        @task
        def make_it() -> None: ...

        make_it() >> group.prepare
    with caplog.at_level(logging.WARNING):
        assert group.begin.execute(CONTEXT)["attempt"] == 1
    assert "topic nowhere does not exist" in caplog.text
    assert f"the file {JOB} is not there" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"job": "{{ ti.xcom_pull('make_it') }}.py"},
        {"job": JOB, "spark_args": {"queue": "spark"}},
        {"job": "no.such.module:load"},
        {"job": "hdfs://host/orders.py"},
    ],
    ids=["a template", "another queue", "a module", "elsewhere"],
)
def test_a_job_that_cannot_be_seen_from_here_is_left_to_prepare(
    load: Callable[..., ExactlyOnceLoad], key: str, arguments: dict[str, Any]
) -> None:
    assert load(sql=None, **arguments).begin.execute(CONTEXT)["attempt"] == 1


def test_in_a_mapped_group_each_load_has_its_own_look(home: Path, topic: Callable[..., str]) -> None:
    """What is filled in for a map index is filled in for begin's too."""
    from types import SimpleNamespace

    name = topic()
    with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        ExactlyOnceLoad.partial("tables", load_name=LOAD, load_key="k").expand_kwargs(
            [{"item": n, "topics": [name], "job": job} for n, job in (("1", JOB), ("2", os.path.abspath(__file__)))]
        )
    begin = dag.get_task("tables.load.begin")
    for index, fails in ((0, True), (1, False)):
        context = CONTEXT | {"ti": SimpleNamespace(**{**vars(CONTEXT["ti"]), "map_index": index}), "run_id": "run",
                             "expanded_ti_count": 2}  # fmt: skip
        mine = begin.prepare_for_execution()
        assert isinstance(mine, BeginLoadOperator)
        mine.load_key = f"mapped {index}"
        mine.topics, mine.item = [name], str(index + 1)
        if not fails:
            assert mine.execute(context)["attempt"] == 1
            continue
        with pytest.raises(AirflowFailException, match=f"job='{JOB}'"):
            mine.execute(context)


def test_a_committed_load_needs_nothing_any_more(
    load: Callable[..., ExactlyOnceLoad], key: str, home: Path, kafka: Any, topic: Callable[..., str]
) -> None:
    """Whoever clears it next year may have neither job nor Spark."""
    name = topic()
    a_prepared_load(home, kafka, key, name, 1)
    gone = {"topics": [name], "sql": None, "job": JOB, "spark_conn_id": "gone"}
    assert load(**gone).begin.execute(CONTEXT)["attempt"] == 1  # prepared: nothing is written any more
    run("decide", key)
    run("commit", key)
    assert load(**gone).begin.execute(CONTEXT)["verdict"] == "commit"


def submitted(key: str) -> Any:
    """An application that writes, for all that is known, as :func:`a_prepared_load`'s before it is through."""
    with session() as opened:
        row = submit(opened, LoadIdentity("airflow", LOAD, key), owner="dag/another run#group=load")
        return AttemptRef(row.load, opened.ledger.ledger_id, row.number)


def test_begin_leaves_the_failure_to_prepare_where_cleanup_has_older_attempts_to_look_after(
    load: Callable[..., ExactlyOnceLoad], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Cleanup is begin's teardown: behind a begin that failed it does not run, and a zombie would be left alone."""
    assert load().begin.execute(CONTEXT)["attempt"] == 1
    submitted(key)
    group = load(sql=None, job=JOB)
    with caplog.at_level(logging.WARNING):
        assert group.begin.execute(CONTEXT)["attempt"] == 2
    assert f"prepare will fail, and cleanup then ends older attempts: job='{JOB}'" in caplog.text
    operator("cleanup", key).execute(CONTEXT)
    with pytest.raises(AirflowFailException, match="is not there"):
        group.begin.execute(CONTEXT)


@pytest.mark.parametrize("step", ["begin", "prepare"])
def test_whoever_opens_the_next_attempt_tells_the_last_ones_driver(
    load: Callable[..., ExactlyOnceLoad], key: str, home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    group = load()
    group.begin.execute(CONTEXT)
    ref = submitted(key)
    store = ManifestStore(str(home / "kafka_eos_manifests"))
    assert store.superseded_by(ref) is None
    if step == "begin":
        group.begin.execute(CONTEXT)
    else:
        monkeypatch.setenv("PATH", str(home))  # no JVM is needed for it
        with pytest.raises(FileNotFoundError):
            group.prepare.execute(CONTEXT)
    by = store.superseded_by(ref)
    assert by is not None
    assert by.startswith("aborted by dag/run#group=load at 20"), by
    assert by.endswith(": superseded by attempt 2"), by
    assert store.superseded_by(AttemptRef(ref.load, ref.ledger_id, 2)) is None
    assert json.loads(Path(store.path(ref)).with_suffix(".superseded").read_text())["noted_at"]
