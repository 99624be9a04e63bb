"""A session of a Spark Connect server, opened by what an Airflow connection says, and ended with what it has begun.

pyspark's client tries a request again where its answer was lost. For the write that would be a second run of it by
itself (rule: one-application-per-attempt): so that one is sent once, whatever becomes of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.connect.shipped import own_version
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError, SparkUnavailableError
from airflow_kafka_eos.reasons import without_secrets
from airflow_kafka_eos.spark.errortext import cause, gist, own_error
from airflow_kafka_eos.spark.versions import ARROW_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_log = logging.getLogger(__name__)

#: pyspark's functions make columns for a server where it is set, and else for a JVM of this process.
_MODE = "SPARK_CONNECT_MODE_ENABLED"
OLDEST = (4, 0)
DEFAULT_PORT = 15002
#: The tag of an operation that must not be sent twice.
ONCE = "kafka_eos_once"
#: Seconds until the first answer.
ANSWER_S = 30.0
#: A server whose host is gone without a word is noticed by that. gRPC's servers hang up on who asks every five minutes.
KEEPALIVE_MS = 360_000
#: Of a request whose answer was lost, 50 ms apart at first and then 4 times as long each time: a minute.
TRIES = 6
#: Seconds for the server to release a session: it is told as a courtesy, and what is prepared waits to be decided.
RELEASE_S = 5.0
#: Conditions, Spark's own, that say that the server has lost the session or the operation; and pyspark's, that it has
#: given up asking.
_GONE = ("INVALID_HANDLE.", "RETRIES_EXCEEDED", "RESPONSE_ALREADY_RECEIVED")
#: How a message begins of an error that has one.
_NAMED = re.compile(r"\[([A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ")
#: gRPC's status of an answer that no Spark has given.
_AWAY, _RUN_OUT = ("UNAVAILABLE",), "UNAUTHENTICATED"
_REFUSED = (_RUN_OUT, "PERMISSION_DENIED")
#: Where pyspark does not tell it: how gRPC writes it down.
_STATUS = re.compile(r"^\s*status = StatusCode\.(\w+)$", re.MULTILINE)


@dataclass(frozen=True, repr=False)
class Remote:
    """Where a Spark Connect server is, and as whom it is spoken to. Holds a secret, so no repr of it.

    :param user: Spark's user id; None: this process's.
    :param logins: by Kafka connection id, the login's id where it is another one (:mod:`.logins`).
    """

    conn_id: str
    host: str
    port: int = DEFAULT_PORT
    user: str | None = None
    token: str | None = None
    use_ssl: bool = False
    logins: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"Spark Connect server {self.host}:{self.port} (connection {self.conn_id!r})"

    @classmethod
    def of(cls, conn_id: str, connection: Any) -> Remote:
        """That of an Airflow connection of type ``spark_connect``.

        :raises ConfigurationError: naming the connection and what is wrong. No part of a URI is shown: it has a token.
        """

        def wrong(problem: str, remedy: str) -> ConfigurationError:
            return ConfigurationError(f"Airflow connection {conn_id!r} {problem}", remedy=remedy)

        host = str(connection.host or "").strip()
        host = host.removeprefix("sc://")
        if not host or any(mark in host for mark in "/;@? "):
            raise wrong(
                "has no host, or more than a host in it",
                "Set host to the server's name alone; port, login (user id), password (token) and the extra's use_ssl "
                "have fields of their own",
            )
        try:
            extra = dict(connection.extra_dejson)
        except (TypeError, ValueError):
            raise wrong("has an extra that is no JSON object", 'Write it as {"use_ssl": true}') from None
        logins = extra.get("kafka_logins", {})
        if not isinstance(logins, Mapping) or not all(
            isinstance(v, str) for kv in logins.items() for v in kv
        ):
            raise wrong(
                "has kafka_logins that are no mapping of texts",
                'Write {"kafka_logins": {"<kafka_conn_id>": "<login>"}}',
            )
        return cls(
            conn_id, host, int(connection.port or DEFAULT_PORT), connection.login or None, connection.password or None,
            str(extra.get("use_ssl", "false")).strip().lower() in ("true", "1", "yes", "on"), dict(logins),
        )  # fmt: skip

    @property
    def secrets(self) -> list[str]:
        return [] if self.token is None else [self.token]

    def login_of(self, kafka_conn_id: str) -> str:
        """The id of the login that executors write with."""
        return self.logins.get(kafka_conn_id, kafka_conn_id)


@contextmanager
def opened(remote: Remote, conf: Mapping[str, Any] | None = None) -> Iterator[SparkSession]:
    """A session of its own, for one application; released at the end, with all that still runs in it.

    :param conf: Spark settings that the author wants in it.
    :raises SparkUnavailableError: the server does not answer.
    :raises ConfigurationError: pyspark is missing, or it or the server is too old; or a setting cannot be set there.
    """
    with _mode():
        spark = _open(remote)
        try:
            with told(remote):
                check_version(spark.version, OLDEST, f"the {remote}", "this package")
                for key, value in (conf or {}).items():
                    spark.conf.set(str(key), str(value))
            yield spark
        finally:
            _close(spark)


def _open(remote: Remote) -> SparkSession:
    try:
        import grpc
        import pyspark
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession
    except ImportError as e:  # pyspark raises one of its own where pandas or gRPC is missing
        raise ConfigurationError(
            f"the {remote} needs pyspark's client, and this Python lacks a part of it: {e}",
            remedy="pip install pyspark-client, of the server's version",
        ) from None

    check_version(pyspark.__version__, OLDEST, "pyspark in Airflow's Python", "Spark Connect")
    host = f"[{remote.host}]" if ":" in remote.host and not remote.host.startswith("[") else remote.host
    builder = DefaultChannelBuilder(f"sc://{host}:{remote.port}", [("grpc.keepalive_time_ms", KEEPALIVE_MS)])
    # not by the URL, where a token with a / is cut off, and which pyspark's errors quote
    for name, value in (("user_id", remote.user), ("token", remote.token)):
        if value is not None:
            builder.set(name, value)
    if remote.use_ssl:
        builder.set("use_ssl", "true")
    builder.add_interceptor(_sent_once(grpc.UnaryStreamClientInterceptor))
    with told(remote):
        spark = SparkSession.builder.channelBuilder(builder).create()
        spark.client.set_retry_policies([DefaultPolicy(max_retries=TRIES)])
        try:
            grpc.channel_ready_future(spark.client._channel).result(ANSWER_S)
        except grpc.FutureTimeoutError:
            _close(spark)
            by_tls = remote.token is not None and not remote.use_ssl and remote.host != "localhost"
            why = ". It was spoken to by TLS: pyspark does so where a token (the password) is set" if by_tls else ""
            raise SparkUnavailableError(
                f"the {remote} does not answer within {ANSWER_S:g} s{why}",
                remedy="Start it (docs/spark-connect.md); look at host, port, TLS (use_ssl) and firewalls",
            ) from None
    return spark


def _sent_once(base: Any) -> Any:
    class SentOnce(base):  # type: ignore[misc]
        """Lets each operation with :data:`ONCE` among its tags go out a single time."""

        def __init__(self) -> None:
            self._sent: set[str] = set()

        def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
            if details.method.endswith("/ExecutePlan") and ONCE in request.tags:
                if request.operation_id in self._sent:
                    raise SparkUnavailableError(
                        "the write was sent to the Spark Connect server, no answer has come, and the server does not "
                        "know of it any more: it is not sent again, since it may have run",
                        remedy="A retry, or clearing prepare, opens a new attempt",
                    )
                self._sent.add(request.operation_id)
            return continuation(details, request)

    return SentOnce()


@contextmanager
def told(remote: Remote, secrets: list[str] | None = None, *, has_answered: bool = False) -> Iterator[None]:
    """What pyspark's client raises, as an error of ours, without what it quotes of tokens and plans.

    What is neither its nor ours is the author's own, and passes.

    :param secrets: to mask beside the server's token.
    :param has_answered: this session has: a login that is refused now was good before, and a token has run out.
    :raises KafkaEosError: our own, as an executor raised it.
    :raises SparkUnavailableError: the server is gone, or has lost the session; or its token has run out.
    :raises SparkFailed: any other.
    """
    masked = [*remote.secrets, *(secrets or [])]
    try:
        yield
    except KafkaEosError:
        raise
    except Exception as e:
        failed = _told(remote, e, masked, has_answered)
        if failed is None:
            raise
        raise failed from None


def _told(remote: Remote, error: Exception, masked: list[str], has_answered: bool = False) -> Exception | None:
    if not _is_clients(error):
        return None
    found = own_error(error, f"pip install airflow-kafka-eos=={own_version()} there, and restart the server")
    if found is not None:
        from airflow_kafka_eos import errors

        name, _, text = found.partition(": ")
        kind: type[KafkaEosError] = getattr(errors, name)
        return kind(without_secrets(text, masked))
    lines = [without_secrets(line, masked) for line in cause(error)]
    condition, status = _condition(error), _status(error)
    if condition.startswith(_GONE) or status in _AWAY:
        return SparkUnavailableError(
            f"the {remote} does not answer, or was started again, and its session is lost: {lines[0]}",
            remedy="Nothing of the attempt can become visible. A retry, or clearing prepare, opens a new one",
        )
    if status == _RUN_OUT and has_answered:
        return SparkUnavailableError(
            f"the {remote} refuses the login that it took before, so its token has run out: {lines[0]}",
            remedy="Nothing of the attempt can become visible. A retry reads the Airflow connection anew: let its "
            "password be a token that outlives a load, or one that a secrets backend renews",
        )
    if status in _REFUSED:
        return ConfigurationError(
            f"the {remote} refuses the login: {lines[0]}",
            remedy="Set password (the token) and login (the user id) of the Airflow connection",
        )
    return SparkFailed(gist(lines))


def _condition(error: Exception) -> str:
    """Spark's name of what went wrong; empty where it has none."""
    asked = getattr(error, "getCondition", None)
    found = None if asked is None else asked()
    if found is None and (named := _NAMED.match(str(error))) is not None:
        return named[1]
    return str(found or "")


def _status(error: Exception) -> str:
    """gRPC's status where no Spark has answered: a proxy has, or nobody. Empty for what a server's query, task or plan
    has failed with: its text may quote any other's status.
    """
    is_plain = type(error).__name__ == "SparkConnectGrpcException" or type(error).__module__.startswith("grpc")
    if _condition(error) or not is_plain:
        return ""
    asked = getattr(error, "code", None) or getattr(error, "getGrpcStatusCode", None)
    if asked is not None:
        return str(getattr(asked(), "name", ""))
    found = _STATUS.search(str(error))
    return "" if found is None else found[1]


class SparkFailed(Exception):
    """What the server has said, without secrets. The author's query, mostly."""


def _is_clients(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("grpc", "pyspark")


def check_version(version: str, oldest: tuple[int, int], who: str, what: str) -> None:
    """
    :raises ConfigurationError: naming who is too old, and for what.
    """
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < oldest:
        raise ConfigurationError(
            f"{who} is Spark {'.'.join(map(str, found))}, and {what} needs {'.'.join(map(str, oldest))} or newer",
            remedy="Use a newer one, or spark-submit (a connection of type spark)",
        )


def check_arrow_functions(spark: SparkSession, remote: Remote, what: str) -> None:
    """Behind what client and server must both be able to do: functions over Arrow arrays, rows by task.

    Called where :func:`told` tells what the server says.

    :raises ConfigurationError: the server is older than Spark 4.1; the client's own age is looked at where it is asked.
    """
    check_version(spark.version, ARROW_FUNCTIONS, f"the {remote}", what)


@contextmanager
def _mode() -> Iterator[None]:
    before = os.environ.get(_MODE)
    os.environ[_MODE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_MODE, None)
        else:
            os.environ[_MODE] = before


def _close(spark: SparkSession) -> None:
    """Whatever is still running in it ends, where the server is there; it forgets the session by itself otherwise.

    pyspark waits for its answer without limit, and a server that stands still may be all that is left to wait for.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    def release() -> None:
        with contextlib.suppress(Exception):
            spark.client.set_retry_policies([DefaultPolicy(max_retries=0)])
            spark.client.release_session()

    thread = threading.Thread(target=release, name="release-session", daemon=True)
    thread.start()
    thread.join(RELEASE_S)
    with contextlib.suppress(Exception):
        if thread.is_alive():
            spark.client._channel.close()  # ends what waits for an answer
        spark.release_session_on_close = False
        spark.stop()
