"""What a connection says, what goes out once, and what errors may show. No server."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos.connect.engine import Job, _checked, _known, _ran_once, check_writer
from airflow_kafka_eos.connect.examine import _runs_once
from airflow_kafka_eos.connect.logins import check_login_id, settings_here, split
from airflow_kafka_eos.connect.remote import (
    ONCE,
    Remote,
    SparkFailed,
    _close,
    _sent_once,
    check_arrow_functions,
    check_version,
    opened,
    told,
)
from airflow_kafka_eos.connect.shipped import shipped
from airflow_kafka_eos.connect.task import WRITE, Look, read_report, without_login
from airflow_kafka_eos.errors import ConfigurationError, OtherClusterError, SparkUnavailableError, TopicError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity, TransactionScope, WriterName
from airflow_kafka_eos.manifest import AttemptRef, ManifestEntry
from airflow_kafka_eos.operators.submitting import FINAL
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.spark.attempt_writer import PartReport
from airflow_kafka_eos.spark.no_retries import check_spark_settings
from airflow_kafka_eos.spark.options import WriteOptions

TOKEN = "a/b+c=d;e f"


def connection(**fields: Any) -> Any:
    made = {"host": "spark", "port": None, "login": None, "password": None, "extra_dejson": {}} | fields
    return SimpleNamespace(**made)


def test_what_a_connection_says() -> None:
    found = Remote.of("c", connection(host="sc://spark", port=1234, login="me", password=TOKEN))
    assert (found.host, found.port, found.user, found.token, found.use_ssl) == (
        "spark",
        1234,
        "me",
        TOKEN,
        False,
    )
    assert TOKEN not in f"{found!r} {found}"
    found = Remote.of("c", connection(extra_dejson={"use_ssl": "True", "kafka_logins": {"kafka": "orders"}}))
    assert (found.port, found.use_ssl) == (15002, True)
    assert (found.login_of("kafka"), found.login_of("other")) == ("orders", "other")


@pytest.mark.parametrize(
    "host", [None, "", f"spark/;token={TOKEN}", "me:pw@spark", "sc://spark/;use_ssl=true"]
)
def test_a_host_is_a_host_and_is_not_shown(host: str | None) -> None:
    with pytest.raises(ConfigurationError, match="has no host, or more than a host in it") as caught:
        Remote.of("c", connection(host=host))
    assert TOKEN not in str(caught.value) and "pw" not in str(caught.value)


@pytest.mark.parametrize("logins", [["a"], {"a": 1}, "x"])
def test_logins_are_a_mapping(logins: Any) -> None:
    with pytest.raises(ConfigurationError, match="kafka_logins that are no mapping"):
        Remote.of("c", connection(extra_dejson={"kafka_logins": logins}))


def test_a_token_with_slashes_reaches_pysparks_builder_whole() -> None:
    """By a URL it would be cut off, and quoted in the error."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    built = []
    builder = DefaultChannelBuilder("sc://spark:1")
    builder.set("token", TOKEN)
    built.append(builder.token)
    assert built == [TOKEN]
    with pytest.raises(Exception, match="a/b"):
        DefaultChannelBuilder(f"sc://spark:1/;token={TOKEN}")


def test_an_operation_that_must_not_run_twice_is_sent_once() -> None:
    once, sent = _sent_once(object), []

    def continuation(details: Any, request: Any) -> str:
        sent.append(request.operation_id)
        return "answers"

    def send(method: str, operation: str, *tags: str) -> Any:
        details = SimpleNamespace(method=f"/spark.connect.SparkConnectService/{method}")
        return once.intercept_unary_stream(
            continuation, details, SimpleNamespace(operation_id=operation, tags=tags)
        )

    assert send("ExecutePlan", "1", ONCE) == "answers"
    assert send("ReattachExecute", "1", ONCE) == "answers"
    with pytest.raises(SparkUnavailableError, match="it is not sent again, since it may have run"):
        send("ExecutePlan", "1", ONCE)
    send("ExecutePlan", "2", ONCE)
    send("ExecutePlan", "3")
    send("ExecutePlan", "3")
    assert sent == ["1", "1", "2", "3", "3"]


def client_error(text: str, status: str = "INTERNAL") -> Exception:
    from grpc import StatusCode
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    return SparkConnectGrpcException(text, grpc_status_code=StatusCode[status])


def of_a_plan(text: str, status: str = "INTERNAL") -> Exception:
    """As pyspark makes it of what the server says of a query, or a task, that has failed."""
    from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
    from grpc import StatusCode
    from pyspark.errors.exceptions.connect import convert_exception

    info = ErrorInfo(reason="org.apache.spark.SparkException", metadata={"classes": '["java.lang.Exception"]'})
    return convert_exception(info, text, None, grpc_status_code=StatusCode[status])


REMOTE = Remote("c", "spark", 1, None, TOKEN)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (client_error(f"sc://spark/;token={TOKEN}", "UNAVAILABLE"), SparkUnavailableError),
        (client_error(f"[INVALID_HANDLE.SESSION_CHANGED] {TOKEN}"), SparkUnavailableError),
        (client_error(f"token={TOKEN}", "UNAUTHENTICATED"), ConfigurationError),
        (client_error(f"token={TOKEN}", "PERMISSION_DENIED"), ConfigurationError),
        (client_error(f"[PARSE] select '{TOKEN}' password=hunter2x"), SparkFailed),
        (client_error(f"x\nairflow_kafka_eos.errors.TopicError: no topic, {TOKEN}\n y"), TopicError),
        (client_error("airflow_kafka_eos.errors.OtherClusterError: x password=hunter2x."), OtherClusterError),
    ],
)
def test_what_a_client_raises_is_told_without_secrets(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, told(REMOTE, ["hunter2x"]):
        raise error
    assert TOKEN not in str(caught.value) and "hunter2x" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize(("status", "kind"), [("UNAUTHENTICATED", SparkUnavailableError),
                                              ("PERMISSION_DENIED", ConfigurationError)])  # fmt: skip
def test_a_token_that_runs_out_under_way_is_no_wrong_one(status: str, kind: type[Exception]) -> None:
    """A retry reads the connection anew; a wrong one no retry would mend."""
    with pytest.raises(kind) as caught, told(REMOTE, has_answered=True):
        raise client_error(f"jwt expired, token={TOKEN}", status)
    assert TOKEN not in str(caught.value)
    assert not issubclass(SparkUnavailableError, FINAL)


@pytest.mark.parametrize("status", ["INTERNAL", "UNKNOWN", "UNAUTHENTICATED", "UNAVAILABLE"])
@pytest.mark.parametrize("made", [client_error, of_a_plan])
@pytest.mark.parametrize(
    "text",
    [
        "Job aborted due to stage failure: java.io.IOException: 403 PERMISSION_DENIED: storage.objects.get on gs://lake",
        "[FAILED_EXECUTE_UDF] grpc.RpcError: status = StatusCode.UNAUTHENTICATED: token expired",
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `REASON_UNAVAILABLE` cannot be resolved",
        "a source: SESSION_NOT_FOUND, RETRIES_EXCEEDED",
    ],
)
def test_what_a_source_says_is_not_the_servers_word(text: str, made: Any, status: str) -> None:
    """A retry is not stopped by it, and nobody is sent to change the server's token."""
    if made is client_error and not text.startswith("["):
        status = "INTERNAL"  # else it is the server's, or its proxy's
    with pytest.raises(SparkFailed), told(REMOTE):
        raise made(text, status)


def test_what_the_author_raises_passes() -> None:
    with pytest.raises(KeyError, match="mine"), told(REMOTE):
        raise KeyError("mine")


def test_an_old_server_is_refused_with_a_new_client() -> None:
    spark: Any = SimpleNamespace(version="4.0.1")
    with pytest.raises(
        ConfigurationError, match=r"the Spark Connect server spark:1 .* is Spark 4\.0, and scope load"
    ):
        check_arrow_functions(spark, REMOTE, "scope load")
    spark.version = "4.1.0"
    check_arrow_functions(spark, REMOTE, "scope load")
    with pytest.raises(ConfigurationError, match=r"is Spark 3\.5, and this needs 4\.0 or newer"):
        check_version("3.5.8", (4, 0), "it", "this")


# -- executors ---------------------------------------------------------------------------------------------------------

_EXECUTOR = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing} or name.startswith("pyspark.sql.connect"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from pyspark import cloudpickle
function = cloudpickle.loads(sys.stdin.buffer.read())
try:
    list(function(iter(())))
except RuntimeError as e:
    print(e)
"""


def on_an_executor(monkeypatch: pytest.MonkeyPatch, *missing: str) -> str:
    from pyspark import cloudpickle

    monkeypatch.setattr("airflow_kafka_eos.connect.shipped.own_version", lambda: "1.2.3")
    pickled = cloudpickle.dumps(shipped(WRITE, b"never looked at"))  # type: ignore[no-untyped-call]
    script = _EXECUTOR.format(missing={"grpc", "grpc_status", *missing})
    done = subprocess.run([sys.executable, "-c", script], input=pickled, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    said: str = done.stdout.decode()
    return said


def test_an_executor_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = on_an_executor(monkeypatch, "airflow_kafka_eos")
    assert "airflow_kafka_eos.errors.ConfigurationError: the Python of the server's executors" in said
    assert "has no airflow_kafka_eos" in said and "pip install airflow-kafka-eos==1.2.3 there" in said


def test_an_executor_with_another_version_says_both(monkeypatch: pytest.MonkeyPatch) -> None:
    said = on_an_executor(monkeypatch)
    assert "has airflow-kafka-eos " in said and "Airflow's worker has 1.2.3" in said


def test_what_runs_on_executors_imports_nothing_of_pysparks_client() -> None:
    code = (
        "import sys; import airflow_kafka_eos.connect.task; "
        "print([m for m in sys.modules if m.split('.')[0] == 'grpc' or m.startswith('pyspark.sql.connect')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_login_that_shows_up_in_an_error_is_masked_where_it_is_known() -> None:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": "b:1", "sasl.password": "hunter2x"})
    try:
        try:
            raise KeyError("hunter2x")
        except KeyError as e:
            raise ValueError("why") from e
    except ValueError as e:
        made = without_login(e, settings)
        assert "hunter2x" not in str(made) and "***" in str(made) and made.__cause__ is None
        other = ValueError("nothing in it")
        assert without_login(other, settings) is other


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"entry": {}, "attempt_number": 0, "skipped_ids": false}']
)
def test_a_report_is_json_and_nothing_else(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_report(text)
    with pytest.raises(ValueError):
        read_report(pickle.dumps(1))


REF = AttemptRef(LoadIdentity("n", "l", "k"), "0" * 10, 1)


@pytest.mark.parametrize(
    ("cluster", "server", "missing"),
    [(None, {"spark.app.id": "a"}, "the id of its Kafka cluster"), ("c", {}, "spark.app.id among the settings")],
)
def test_what_executors_compare_is_known(cluster: str | None, server: dict[str, str], missing: str) -> None:
    job = Job(None, "login", cluster, lambda: None)
    with pytest.raises(ConfigurationError, match=f"{missing}.* is not told"):
        _known(job, server, REMOTE, REF)
    assert _known(Job(None, "login", "c", lambda: None), {"spark.app.id": "a"}, REMOTE, REF) == ("c", "a")


def test_an_executor_whose_application_has_no_id_writes_nothing() -> None:
    work: Any = SimpleNamespace(application_id=None, options=SimpleNamespace(attempt=REF))
    with pytest.raises(SparkUnavailableError, match="was started again: this is its application None"):
        Look(work, KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"}), None)()


@pytest.mark.parametrize(
    ("monotonic", "wall", "looks"),
    [
        (fences.LOOK_S - 1, fences.LOOK_S - 1, 1),
        (fences.LOOK_S + 1, fences.LOOK_S + 1, 2),
        (1, 3600, 2),  # the machine was suspended, or its VM paused
        (fences.LOOK_S + 1, 1, 2),  # somebody has set the other one
        (1, -1, 2),
    ],
)
def test_a_look_is_good_only_while_both_clocks_say_so(
    monotonic: float, wall: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0, 1e9]
    work: Any = None
    settings = KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    looking = Look(work, settings, "app-1", clock=lambda: now[0], wall=lambda: now[1])
    made: list[float] = []
    monkeypatch.setattr(looking, "_look", lambda: made.append(now[0]))
    looking()
    now[:] = [monotonic, 1e9 + wall]
    looking()
    assert len(made) == looks


# -- what is refused, and what is not waited for -----------------------------------------------------------------------


OPTIONS = WriteOptions(REF, "/nowhere", ("orders",), 900_000, 2**42)


def test_what_only_librdkafka_writes_is_refused() -> None:
    """Spark-submit falls back to it; here nobody could look before it begins a transaction."""
    with pytest.raises(ConfigurationError, match="librdkafka begins transactions by itself"):
        check_writer(WriterName.CONFLUENT)
    check_writer(WriterName.AUTO)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1", "partitioner": "fnv1a"})
    with pytest.raises(ConfigurationError, match="with a Spark Connect server no other one writes") as caught:
        _checked(settings, OPTIONS)
    assert "writer=confluent" not in str(caught.value)


ONCE_EACH = {
    "spark.stage.maxConsecutiveAttempts": "1", "spark.stage.ignoreDecommissionFetchFailure": "false",
}  # fmt: skip


@pytest.mark.parametrize(
    ("conf", "once"),
    [
        (ONCE_EACH, True),  # speculation is off by default
        ({**ONCE_EACH, "spark.speculation": "false"}, True),
        ({**ONCE_EACH, "spark.speculation": "true"}, False),
        ({"spark.speculation": "false"}, False),
    ],
)
def test_prepare_and_the_doctor_judge_a_server_alike(conf: dict[str, str], once: bool) -> None:
    report = PartReport(ManifestEntry(0, None, ()))
    assert _ran_once([report], conf) is once
    assert not _ran_once([replace(report, attempt_number=1)], conf)
    for scope, bad in ((TransactionScope.LOAD, "error"), (TransactionScope.TASK, "warning")):
        assert _runs_once("it", conf, scope).severity.value == ("ok" if once else bad)
    with nullcontext() if once else pytest.raises(ConfigurationError):
        check_spark_settings(conf.get)


class StandingStill:
    """A session whose server does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airflow_kafka_eos.connect.remote.RELEASE_S", 0.1)
        self.goes_on = threading.Event()
        self.done: list[str] = []
        self.release_session_on_close = True
        self.client = SimpleNamespace(
            set_retry_policies=lambda _: None, release_session=self.goes_on.wait, _channel=self
        )

    def close(self) -> None:
        """Of the channel: gRPC cancels what waits."""
        self.done.append("closed")
        self.goes_on.set()

    def stop(self) -> None:
        self.done.append("stopped")
        assert not self.release_session_on_close, "it would ask once more"


def test_a_server_that_stands_still_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of a session's end when all is prepared, and what is prepared is to be decided."""
    session = StandingStill(monkeypatch)
    done = threading.Thread(target=_close, args=(session,), daemon=True)
    done.start()
    done.join(60)
    assert not done.is_alive()
    assert session.done == ["closed", "stopped"]


@pytest.mark.parametrize(
    ("token", "use_ssl", "host", "said"),
    [
        (TOKEN, False, "127.0.0.1", True),
        (TOKEN, True, "127.0.0.1", False),
        (None, False, "127.0.0.1", False),
        (TOKEN, False, "localhost", False),
    ],
)
def test_a_server_that_does_not_answer_is_told_with_the_tls_that_a_token_brings(
    monkeypatch: pytest.MonkeyPatch, token: str | None, use_ssl: bool, host: str, said: bool
) -> None:
    """Nobody has asked for it, and a server without it seems to be away."""
    monkeypatch.setattr("airflow_kafka_eos.connect.remote.ANSWER_S", 0.2)
    monkeypatch.setattr("airflow_kafka_eos.connect.remote.RELEASE_S", 0.2)
    remote = Remote("c", host, 1, None, token, use_ssl)
    with pytest.raises(SparkUnavailableError, match="does not answer within") as caught, opened(remote):
        pass
    assert ("spoken to by TLS" in str(caught.value)) is said


def test_an_executor_without_the_package_is_told_what_a_server_needs() -> None:
    """Functions in a plan are unpickled before anything of ours can look. Nothing is shipped to a server."""
    error = client_error("x\nModuleNotFoundError: No module named 'airflow_kafka_eos.spark'\n y")
    wanted = r"pip install airflow-kafka-eos==.* there, and restart the server"
    with pytest.raises(ConfigurationError, match=wanted) as caught, told(REMOTE):
        raise error
    assert "py_files" not in str(caught.value)


def test_a_mistake_of_the_authors_is_not_a_server_that_is_gone() -> None:
    with pytest.raises(SparkFailed), told(REMOTE):
        raise client_error("[NO_ACTIVE_SESSION] No active Spark session found.")


# -- logins ------------------------------------------------------------------------------------------------------------


#: The first is in the snippet that Confluent's console gives out.
NOBODY_KNOWS = {
    "basic.auth.user.info": "key1:s3cr3t-1", "schema.registry.basic.auth.user.info": "key2:s3cr3t-2",
    "ssl.key": "s3cr3t-3", "my.api.key": "s3cr3t-4", "aws.credential": "s3cr3t-5", "https.proxy": "http://u:s3cr3t-6@p",
    "SASL.PASSWORD": "s3cr3t-7",
}  # fmt: skip


def test_what_may_be_a_secret_is_not_sent() -> None:
    texts = {
        "bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u", "sasl.password": "p", "ssl.key.pem": "k", "ssl.ca.location": "/ca.pem", "linger.ms": "5",
        **NOBODY_KNOWS,
    }  # fmt: skip
    settings = KafkaSettings.from_mapping(texts)
    sent, kept = split(settings)
    assert kept == sorted(["sasl.password", "sasl.username", "ssl.key.pem", *NOBODY_KNOWS])
    assert not set(sent.values()) & {*settings.secrets, *NOBODY_KNOWS.values()}
    assert sorted(sent) == [
        "bootstrap.servers",
        "linger.ms",
        "sasl.mechanism",
        "security.protocol",
        "ssl.ca.location",
    ]


def test_a_file_beats_what_was_sent_and_is_needed_only_for_what_was_not(tmp_path: Any) -> None:
    environ = {"AIRFLOW_KAFKA_EOS_LOGINS": str(tmp_path)}
    sent = {"bootstrap.servers": "b:1"}
    assert settings_here(sent, "orders", [], environ).texts == sent
    with pytest.raises(
        ConfigurationError, match=r"orders\.json, and sasl\.password of the Airflow connection"
    ):
        settings_here(sent, "orders", ["sasl.password"], environ)
    file = tmp_path / "orders.json"
    file.touch(mode=0o600)
    file.write_text('{"metadata.broker.list": "c:2", "sasl.password": "x"}')
    found = settings_here(sent, "orders", ["sasl.password"], environ).texts
    assert found == {"bootstrap.servers": "c:2", "sasl.password": "x"}
    file.write_text("hunter2x")
    with pytest.raises(ConfigurationError, match="is no JSON object") as caught:
        settings_here(sent, "orders", [], environ)
    assert "hunter2x" not in str(caught.value)


@pytest.mark.parametrize("login", ["", "../x", "a/b", ".hidden", "a\n", "ü", "x" * 129])
def test_a_login_is_a_name_of_a_file(login: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a file"):
        check_login_id(login)
