"""submit=Submit(…): what an author is told when the DAG is parsed, and how an operator is told of its attempt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.sensors.bash import BashSensor
from airflow.sdk import DAG, BaseHook, BaseOperator, task

from airflow_kafka_eos import ExactlyOnceLoad, Submit, exactly_once_load, manifest
from airflow_kafka_eos.errors import ConfigurationError, ManifestError, NotFinishedError, UndecidableError
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.operators.collect import CollectLoadOperator, left_by_application, submitted_attempt
from airflow_kafka_eos.operators.marks import Marks, copied, filled_in
from airflow_kafka_eos.operators.own_submitter import (
    OwnSubmitter,
    _collect,
    _name,
    collect_behind,
    submitter_of,
    token_of,
)
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.operators.preparing import decide_behind
from airflow_kafka_eos.operators.shown_secrets import shown_secret
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.airflow.steps import connection, in_try
from tests.spark.test_manifest_store import EMPTY, REF

COMMAND = "spark-submit {{ kafka_eos.application }} --spec {{ kafka_eos.spec }}"
SPARK: dict[str, Any] = {"application_args": ["--spec", "{{ kafka_eos.spec }}"]}
BASH = Submit(BashOperator, runs_here=True, bash_command=COMMAND)


def dag(**arguments: Any) -> DAG:
    return DAG("own", schedule=None, start_date=datetime(2026, 1, 1), **arguments)


def made(**given: Any) -> ExactlyOnceLoad:
    arguments: dict[str, Any] = {"topics": ["t"], "job": "j.py", "submit": BASH}
    with dag():
        return ExactlyOnceLoad("load", **arguments | given)


def submitted(load: ExactlyOnceLoad) -> Any:
    assert load.submit is not None
    return load.submit


def test_the_group_has_the_operator_and_collect_in_prepares_place() -> None:
    with dag(default_args={"trigger_rule": "all_done", "retries": 4}):
        load = ExactlyOnceLoad("load", topics=["t"], job="j.py", manifest_dir="/m", submit=BASH)
    submit, collect = submitted(load), load.prepare
    assert (submit.task_id, collect.task_id) == ("load.submit", "load.collect")
    assert isinstance(submit, BashOperator) and isinstance(collect, CollectLoadOperator)
    assert load.begin.downstream_task_ids >= {"load.submit"} and submit.upstream_task_ids == {"load.begin"}
    assert collect.upstream_task_ids == {"load.submit"} and collect.downstream_task_ids == {"load.decide"}
    assert (submit.trigger_rule, submit.retries) == ("all_success", 4)
    assert decide_behind(collect) is load.decide and collect_behind(submit) is collect


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"submit": "bash"}, "submit='bash' is of type str, not Submit"),
        ({"engine": "arrow"}, "engine='arrow' runs in Airflow's worker, and submit= names an operator"),
        ({"spark_conn_id": "s"}, "spark_conn_id='s' is of spark-submit by this package"),
        ({"spark_args": {"conf": {}}}, "spark_args={'conf': {}} is of spark-submit by this package"),
        (
            {"submit": Submit(BashOperator, bash_command=COMMAND)},
            "BashOperator load.submit has the Spark driver run elsewhere, and there is no manifest_dir",
        ),
        (
            {"submit": Submit(BashOperator, runs_here=True, bash_command="spark-submit job.py")},
            "BashOperator load.submit is not told what to load: none of bash_command, env, cwd names it",
        ),
        (
            {"submit": Submit(SparkSubmitOperator, runs_here=True, durable=True, **SPARK)},
            "durable=True of SparkSubmitOperator load.submit: a try would not run its own application",
        ),
        (
            {"submit": Submit(BashOperator, runs_here=True, bash_command=COMMAND, env={"A": "b"})},
            "env of BashOperator load.submit is all that its child gets: not the Kafka settings",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # what stands in a Submit has another address each time
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(**given)
    assert said in str(caught.value) and caught.value.remedy


def test_an_environment_that_lets_the_settings_through_passes() -> None:
    for given in ({}, {"env": {"A": "b"}, "append_env": True}, {"append_env": False}):
        assert submitted(made(submit=Submit(BashOperator, runs_here=True, bash_command=COMMAND, **given)))
    elsewhere = Submit(BashOperator, bash_command=COMMAND, env={"A": "b"})
    assert submitted(made(submit=elsewhere, manifest_dir="/m"))


def test_no_try_takes_up_the_application_of_an_earlier_one() -> None:
    """Rule: one-application-per-attempt. The operator itself does so by default."""
    with dag():
        assert SparkSubmitOperator(task_id="plain").durable
    submit = submitted(made(submit=Submit(SparkSubmitOperator, runs_here=True, **SPARK)))
    assert (submit.durable, submit.start_from_trigger) == (False, False)


@pytest.mark.parametrize("name", ["reattach", "reattach_on_restart", "durable", "start_from_trigger"])
def test_whatever_an_operator_calls_it(name: str) -> None:
    """ECS has ``reattach``, Kubernetes ``reattach_on_restart``."""

    class Reattaching(BashOperator):
        def __init__(self, **kwargs: Any) -> None:
            given = kwargs.pop(name, True)
            super().__init__(**kwargs)
            setattr(self, name, given)

    arguments: dict[str, Any] = {"runs_here": True, "bash_command": COMMAND}
    assert getattr(submitted(made(submit=Submit(Reattaching, **arguments))), name) is False
    with pytest.raises(ConfigurationError, match=f"{name}=True of Reattaching load.submit"):
        made(submit=Submit(Reattaching, **arguments, **{name: True}))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Submit(BashOperator(task_id="b", bash_command="true")), "is no operator's class"),  # type: ignore[arg-type]
        (lambda: Submit(PrepareLoadOperator), "PrepareLoadOperator is a step of a load already"),
        (lambda: Submit(submitter_of(BashOperator)), "is a step of a load already"),
        (lambda: Submit(BashSensor, bash_command=COMMAND), "BashSensor is a sensor"),
        (lambda: Submit(BashOperator, task_id="run"), "Submit(BashOperator, …) has task_id='run', which the load sets"),
        (lambda: Submit(BashOperator, outlets=[]), "has outlets=[], which the load sets"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_submit_is_refused(make: Callable[[], Submit], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert said in str(caught.value) and caught.value.remedy


@pytest.mark.parametrize(
    "command", ["run.sh", "{% include 'run.sh' %}", "--spec @{{ kafka_eos.spec_file }}"]
)
def test_what_may_name_the_spec_once_it_is_read_passes(command: str) -> None:
    """Files are read, and templates rendered, behind the parsing: it is looked at again then."""
    assert submitted(made(submit=Submit(BashOperator, runs_here=True, bash_command=command)))


@pytest.mark.parametrize("came_back", ["execute_complete", "__fail__"])
@pytest.mark.parametrize("told", [None, {"attempt": 1}, {"attempt": 1, "try_number": 1}], ids=["gone", "before", "try"])
def test_what_the_platform_has_answered_before_a_clear_is_not_taken_up(
    monkeypatch: pytest.MonkeyPatch, told: Any, came_back: str
) -> None:
    """Rule: event-of-its-own-try. Airflow clears a task that runs, and keeps what it came back with."""
    submit = submitted(made())
    monkeypatch.setattr(type(submit), "execute", lambda self, context: "submitted anew")
    xcoms: dict[tuple[str, str], Any] = {("load.step", "kafka_eos"): told}
    assert submit.resume_execution(came_back, {"event": {}}, in_try(2, xcoms)) == "submitted anew"


def test_what_the_arguments_come_from_runs_before_the_operator() -> None:
    @task
    def topics() -> list[str]:
        return ["t"]

    @task
    def day() -> str:
        return "2026-01-01"

    @exactly_once_load(topics=["t"], submit=BASH)
    def rows(spark: Any, day: str) -> None: ...

    with dag():
        load = ExactlyOnceLoad("load", topics=topics(), job="j.py", job_args={"day": day()}, submit=BASH)
        of_function: ExactlyOnceLoad = rows(day=day())
    assert submitted(load).upstream_task_ids == {"load.begin", "topics", "day"}
    assert submitted(of_function).upstream_task_ids == {"rows.begin", "day__1"}


class Naming(BaseOperator):
    """Writes into what it is given, as Databricks' does with the name of its run."""

    template_fields = ("json",)

    def __init__(self, *, json: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        json["run"].setdefault("name", self.task_id)
        self.json = json


def test_loads_that_share_it_share_none_of_its_arguments() -> None:
    submit = Submit(Naming, json={"run": {"args": ["{{ kafka_eos.spec }}"]}})
    with dag():
        loads = [
            ExactlyOnceLoad(name, topics=["t"], job="j.py", manifest_dir="/m", submit=submit) for name in ("a", "b")
        ]
    assert [submitted(load).json["run"]["name"] for load in loads] == ["a.submit", "b.submit"]


def test_the_plugins_link_finds_it_and_airflow_shows_the_authors_class() -> None:
    """By the name of its class, which the api-server has to know, and its module."""
    submit = submitted(made())
    assert (submit.task_type, submit.operator_name) == (OwnSubmitter.__name__, "BashOperator")
    assert type(submit).__module__ == OwnSubmitter.__module__


def test_mapped_loads_share_it() -> None:
    with dag() as made_dag:
        ExactlyOnceLoad.partial("tables", job="j.py", submit=BASH).expand(topic=["a", "b"])
    assert made_dag.get_task("tables.load.submit").downstream_task_ids == {"tables.load.collect"}


# --- marks


def rendered(operator: BaseOperator, **context: Any) -> Any:
    given: Any = {"dag_run": None, "params": {}, **context}
    operator.render_template_fields(given)
    return operator


def test_rendering_shows_marks_and_does_nothing() -> None:
    submit = rendered(submitted(made()))
    assert submit.bash_command == "spark-submit __kafka_eos_application__ --spec __kafka_eos_spec__"


@pytest.mark.parametrize("native", [False, True])
def test_marks_pass_filters_and_native_rendering(native: bool) -> None:
    words = {"spec": "base64:e30=", "attempt": "3"}
    given = ["{{ kafka_eos.spec | tojson }}", "{{ kafka_eos.spec }}", {"run": "{{ 'n-' ~ kafka_eos.attempt }}"}]
    with dag(render_template_as_native_obj=native):
        submit = submitter_of(PythonOperator)(task_id="s", python_callable=print, op_args=given)
    found = filled_in(rendered(submit).op_args, lambda mark: words[mark[1]], set())
    assert json.loads(found[0]) == "base64:e30=" if not native else found[0].strip('"') == "base64:e30="
    assert list(found[1:]) == ["base64:e30=", {"run": "n-3"}]


class Pair(NamedTuple):
    name: str
    value: str


class Nested:
    """An object that Airflow renders."""

    template_fields = ("text",)

    def __init__(self, text: Any) -> None:
        self.text, self.other = text, text


class Model:
    """As the Kubernetes client's models are; it is not installed here."""

    openapi_types = {"value": "str", "items": "list[Model]"}  # noqa: RUF012

    def __init__(self, value: Any, items: Any = None) -> None:
        self._value, self.items = value, items

    @property
    def value(self) -> Any:
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value


def test_words_take_the_place_of_marks_wherever_airflow_renders() -> None:
    mark = Marks().spec
    model, nested = Model(mark, [Model(f"<{mark}>")]), Nested([mark])
    around = Model("", None)
    around.items = [around]  # a circle
    value = {"a": [mark, (mark, 1)], "b": Pair(mark, "x"), "c": {mark}, "d": model, "e": nested, "f": around, mark: 1}
    found = filled_in(value, lambda mark: "S", set())
    assert found["a"] == ["S", ("S", 1)] and found["b"] == Pair("S", "x") and found["c"] == {"S"}
    assert (model.value, model.items[0].value) == ("S", "<S>")
    assert (nested.text, nested.other) == (["S"], [mark])
    assert mark in found  # no key: Airflow renders none


def test_a_copy_has_what_airflow_renders_for_itself_and_else_the_very_same() -> None:
    around = Model("", None)
    around.items = [around]  # a circle
    with dag():
        upstream = BashOperator(task_id="upstream", bash_command="true")
    value = {"a": [{"b": (1, {"c": 2})}], "p": Pair("n", "v"), "s": {"x"}, "n": Nested(["t"]), "m": around}
    same = {"task": upstream, "result": upstream.output, "function": print, "class": Nested}
    own = copied(value | same)
    assert {name: own[name] for name in ("a", "p", "s")} == {name: value[name] for name in ("a", "p", "s")}
    assert all(own[name] is one for name, one in same.items())
    own["a"][0]["b"][1]["c"] = 3
    own["s"].add("y")
    own["n"].text.append("u")
    own["m"].value = "z"
    assert own["m"].items[0] is own["m"]
    assert (value["a"], value["s"]) == ([{"b": (1, {"c": 2})}], {"x"})
    assert (value["n"].text, around.value) == (["t"], "")  # type: ignore[attr-defined]


def test_a_word_is_not_looked_at_again() -> None:
    """What an author's data is called must not be taken for a mark."""
    marks = Marks()
    words = {"spec": marks.attempt, "attempt": "1"}
    assert filled_in(f"{marks.spec} {marks.attempt}", lambda mark: words[mark[1]], set()) == f"{marks.attempt} 1"


def test_without_a_spec_in_what_was_rendered_no_attempt_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("spark-submit job.py")
    with dag(template_searchpath=str(tmp_path)):
        load = ExactlyOnceLoad(
            "load", topics=["t"], job="j.py", load_key="k",
            submit=Submit(BashOperator, runs_here=True, bash_command="run.sh"),
        )  # fmt: skip
    context: Any = {"ti": SimpleNamespace(map_index=-1, xcom_pull=lambda **_: None), "dag_run": None, "params": {}}
    submit = rendered(submitted(load), **context)
    with pytest.raises(AirflowFailException, match="no rendered template field has it"):
        submit.execute(context)


def test_collect_must_be_right_behind_it() -> None:
    with dag():
        alone = submitter_of(BashOperator)(task_id="alone", bash_command=COMMAND)
    with pytest.raises(ConfigurationError, match="0 tasks right behind alone are a CollectLoadOperator"):
        collect_behind(alone)


def test_submit_checks_collects_key_and_runs_nothing_of_what_an_author_has_before_collect() -> None:
    """Once for each of the two, and after each deferral; it may send a mail."""
    ran: list[Any] = []

    class Mine(CollectLoadOperator):
        def pre_execute(self, context: Any) -> None:
            ran.append(context)
            super().pre_execute(context)

    with dag():
        submit = submitter_of(BashOperator)(task_id="submit", bash_command=COMMAND)
        submit >> Mine(task_id="collect", load_name="l", load_key="{{ params.key }}", job="j.py", topics=["t"])
    context: Any = {"ti": SimpleNamespace(map_index=-1, xcom_pull=lambda **_: None), "dag_run": None}
    assert _collect(submit, context | {"params": {"key": "k"}}).load_key == "k"
    assert ran == []
    with pytest.raises(AirflowFailException, match="rendered to 'None'"):
        _collect(submit, context | {"params": {"key": None}})


# --- the token


def test_a_token_is_one_trys_alone_and_fits_where_platforms_want_one() -> None:
    load = LoadIdentity("airflow", "orders", "2013-01-01")
    refs = [AttemptRef(load, "L" * 10, 1), AttemptRef(load, "L" * 10, 2), AttemptRef(load, "M" * 10, 1)]
    refs += [AttemptRef(LoadIdentity(*names), "L" * 10, 1) for names in (
        ("other", "orders", "2013-01-01"), ("airflow", "orders.2013", "01-01"), ("airflow", "orders", "2013-01-02"),
        ("airflow", "orders", "2013-01-01~reload-2"),
    )]  # fmt: skip
    tokens = [token_of(ref, one) for ref in refs for one in ("first", "second")]
    assert len({*tokens}) == len(tokens)
    assert token_of(AttemptRef(load, "L" * 10, 1, slot=3), "first") == tokens[0]  # what is read behind a deferral
    for token in tokens:  # Dataproc's batch ids and Kubernetes' names want the most: at most 36 leave room for more
        assert re.fullmatch("[a-z][a-z0-9-]{3,35}", token) and not token.endswith("-")


def test_it_is_a_mark_until_the_attempt_is_open() -> None:
    submit = Submit(PythonOperator, runs_here=True, python_callable=print, op_args=["{{ kafka_eos.spec }}"],
                    op_kwargs={"token": "{{ kafka_eos.token }}"})  # fmt: skip
    operator = rendered(submitted(made(submit=submit)))
    assert operator.op_kwargs == {"token": "__kafka_eos_token__"}
    _name(operator, {"ti": SimpleNamespace(id="i")}, REF, "{}", "/m/spec")
    assert operator.op_kwargs == {"token": token_of(REF, "i")}


# --- secrets

PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQ==\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "secret", ['x7"hunter\\2', "x7'h<unter>&2", "pä ss/wörd+1😀", PEM, "correcthorsebatterystaple"]
)
@pytest.mark.parametrize(
    "written",
    [
        str,
        repr,
        json.dumps,
        lambda secret: json.dumps(secret, ensure_ascii=False),
        lambda secret: json.dumps({"conf": json.dumps({"sasl.password": secret})}),
        lambda secret: json.dumps(secret).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        lambda secret: f"https://u:{quote(secret, safe='')}@host",
        lambda secret: "key: |\n    " + secret.replace("\n", "\n    "),
    ],
    ids=["text", "repr", "JSON", "JSON of Unicode", "JSON in JSON", "tojson", "URL", "YAML"],
)
def test_a_secret_is_found_however_it_is_written(secret: str, written: Callable[[str], str]) -> None:
    assert shown_secret({"name": "n", "command": f"run {written(secret)} now"}, [secret]) == "command"
    assert shown_secret({"command": f"run {written(secret[1:])} now"}, [secret]) is None


def test_where_a_secret_is_found_is_said_without_it() -> None:
    secret = "x7-hunter2"
    pod = Model("v", [Model("v"), Model(f"--password={secret}")])
    around = Model("", None)
    around.items = [around]  # a circle
    for fields, place in (
        ({"conf": {"spark.x": 1, "spark.y": [None, {"z": f"a {secret}"}]}}, "conf['spark.y'][1]['z']"),
        ({"env_vars": (around, pod)}, "env_vars[1].items[1].value"),
        ({"nested": Nested(secret)}, "nested.text"),
        ({"conf": {"a": {f"--{secret}": {"b": secret}}}}, "conf['a'], in a key"),
    ):
        assert shown_secret(fields, [secret]) == place
    assert shown_secret({"nested": around, "reference": {"secretKeyRef": {"key": "x7"}}}, [secret, "", "x7"]) is None


def test_a_secret_that_may_be_a_part_of_a_name_counts_as_a_whole() -> None:
    for text in ("--topics orders-2024-eu", "eu-orders-2024", "orders-2024.csv", "xorders-2024"):
        assert shown_secret({"a": text}, ["orders-2024"]) is None, text
    for text in ("--password orders-2024", "orders-2024", '{"a": "orders-2024"}', "--orders-2024", "u:orders-2024@h"):
        assert shown_secret({"a": text}, ["orders-2024"]) == "a", text


def test_a_secret_counts_beside_what_it_is_of() -> None:
    url = "postgresql://eos:correcthorsebatterystaple@db/ledger"
    for text, place in ((url, "a"), (url.replace("ledger", "shop"), None), (url.replace("@db", "@other"), None)):
        assert shown_secret({"a": text}, ["correcthorsebatterystaple"], ["db", "ledger"]) == place


@pytest.mark.parametrize("secret", ["airflow", "postgres", "12345678", "p-1"])
def test_a_plain_word_is_found_as_a_password_alone(secret: str) -> None:
    """It is in paths, names and images, and no author could do without."""
    for text in (
        f"/opt/{secret}/application.py", secret, f"secretName: {secret}", f"idempotency_token={secret}-orders",
        f"--password-file={secret}/x",
    ):  # fmt: skip
        assert shown_secret({"a": text, "b": {"key": secret, "image": f"apache/{secret}:{secret}"}}, [secret]) is None
    found = None if len(secret) < 4 else "a"
    for text in (
        f"KAFKA_PASSWORD='{secret}'", json.dumps(json.dumps({"sasl.password": secret})), f"postgresql://u:{secret}@h/d",
        f'"basic.auth.user.info": "u:{secret}"',
    ):  # fmt: skip
        assert shown_secret({"a": text}, [secret]) == found
    assert shown_secret({"a": {"sasl.password": secret}}, [secret]) == (found and "a['sasl.password']")


SECRETS = {"of Kafka": "x7-hunter2", "of the registry": "r3-gistry\"1", "of the ledger": "l9/edger é"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env": {"K": "{{ conn.kafka_default.extra }}"}}, "env['K'] {} the Kafka connection's"),
        ({"env": {"K": "{{ conn.kafka_default.extra_dejson | tojson }}"}}, "env['K'] {} the Kafka connection's"),
        ({"env": {"R": "{{ conn.registry.password | tojson }}"}}, "env['R'] {} the schema registry's"),
        ({"bash_command": f"{COMMAND} {{{{ conn.ledger.get_uri() }}}}"}, "bash_command {} the ledger's"),
    ],
)
def test_a_secret_in_an_operators_argument_is_refused_before_an_attempt_is_taken(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], said: str
) -> None:
    extra = {"bootstrap.servers": "nowhere:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
             "sasl.username": "loads", "sasl.password": SECRETS["of Kafka"]}  # fmt: skip
    connection(monkeypatch, "kafka_default", "kafka", extra=extra)
    connection(monkeypatch, "registry", "http", host="r", login="u", password=SECRETS["of the registry"])
    connection(monkeypatch, "ledger", "postgres", host="nowhere", login="u", password=SECRETS["of the ledger"],
               schema="d")  # fmt: skip
    arguments = {"bash_command": COMMAND, "append_env": True} | given
    with dag():
        load = ExactlyOnceLoad(
            "load", topics=["t"], job="j.py", load_key="k", registry_conn_id="registry", ledger_conn_id="ledger",
            value_format="confluent-json", submit=Submit(BashOperator, runs_here=True, **arguments),
        )  # fmt: skip
    monkeypatch.setattr(CollectLoadOperator, "take", lambda *_: pytest.fail("an attempt is taken"))
    ti = SimpleNamespace(map_index=-1, xcom_pull=lambda **_: None)
    conn = {name: BaseHook.get_connection(name) for name in ("kafka_default", "registry", "ledger")}
    context: Any = {"ti": ti, "dag_run": None, "params": {}, "conn": conn}
    submit = rendered(submitted(load), **context)
    with pytest.raises(AirflowFailException) as caught:
        submit.execute(context)
    assert said.format("of BashOperator load.submit has a secret of") in str(caught.value)
    assert "AIRFLOW_KAFKA_EOS_KAFKA" in str(caught.value)
    for secret in SECRETS.values():
        assert shown_secret({"error": f"{caught.value} {caught.value.__cause__}"}, [secret]) is None


# --- collect

LOAD = LoadIdentity("airflow", "orders", "2013-01-01")
MINE, OTHER = "dag/run#group=load", "dag/other#group=load"


def row(number: int, owner: str = MINE, **known: Any) -> AttemptRow:
    by = {"submitted_at": "t", "submitted_by": owner}
    return AttemptRow(LOAD, number, owner, "t", **{**by, **known})


def test_the_newest_attempt_that_this_run_has_submitted_is_collected() -> None:
    aborted = {"verdict": Verdict.ABORT, "decided_by": "x", "decided_at": "then", "reason": "superseded by attempt 2"}
    assert submitted_attempt([row(1, **aborted), row(2)], MINE).number == 2
    opened_by_another = row(1, OTHER, submitted_by=MINE)
    assert submitted_attempt([opened_by_another], MINE).number == 1
    decided = row(1, OTHER, verdict=Verdict.COMMIT)
    assert submitted_attempt([decided], MINE) is decided
    with pytest.raises(UndecidableError, match=r"attempt 1, which the task before .* was aborted by x at then: supers"):
        submitted_attempt([row(1, **aborted), row(2, OTHER)], MINE)
    for none in ([], [row(1, OTHER)], [row(1, submitted_at=None, submitted_by=None)]):
        with pytest.raises(UndecidableError, match="no attempt of this load was submitted by this run"):
            submitted_attempt(none, MINE)


def test_what_the_application_has_left_in_the_manifests_place_is_said(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    with pytest.raises(ManifestError, match="no application has claimed the attempt") as unclaimed:
        left_by_application(store, REF)
    assert "kafka_eos.spec_file" in unclaimed.value.remedy
    store.claim(REF, "a driver")
    with pytest.raises(NotFinishedError, match="a driver has claimed the attempt, and has neither finished nor said"):
        left_by_application(store, REF)
    store.note_failed(REF, "RecordError: row 7 has no topic")
    with pytest.raises(ManifestError, match="has failed, though the task before has succeeded: RecordError: row 7"):
        left_by_application(store, REF)
    second = AttemptRef(REF.load, REF.ledger_id, 2)
    assert store.give_up(second, "a task or the manifest failed")
    with pytest.raises(ManifestError, match="gave this attempt up: a task or the manifest failed"):
        left_by_application(store, second)
    third = AttemptRef(REF.load, REF.ledger_id, 3)
    store.write(third, manifest.dump(EMPTY))  # of attempt 1
    with pytest.raises(ManifestError, match="attempt"):
        left_by_application(store, third)


def test_an_attempts_specification_is_left_once(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    assert store.spec(REF) is None
    assert Path(store.note_spec(REF, "{}")).read_text() == "{}" == store.spec(REF)
    with pytest.raises(UndecidableError, match="was told already"):
        store.note_spec(REF, "{}")
