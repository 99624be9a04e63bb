"""kafka-python's connections, with what they lack: the reason of a failure, an end to refused logins, silent logs.

With :mod:`.wire` and :mod:`.pool` all that touches what is private in kafka-python. Each private thing that is used is
named in tests/kafka/test_kafka_python_contract.py (docs/adr/0025).

kafka-python tells of every connection at INFO, and of every broker that is away at WARNING and ERROR, with a traceback
sometimes. All that comes to us as an exception, is tried again, or becomes an error of ours that names brokers and
remedy. So what it logs while it works for us is logged at DEBUG, whatever level it gives it. Who debugs connections
sees it: ``logging.getLogger("kafka").setLevel(logging.DEBUG)``, or Airflow's ``logging_level = DEBUG``.

Only our own clients are meant: a task, or another trigger in the same process, may have a client of its own. All of
ours work in the thread that calls them, so a mark on the thread says whose a record is. What no caller hears of, a bug
in a callback for one, keeps its level.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from kafka import errors
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import ApiVersionsRequest

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerTooOldError,
    BrokerUnavailableError,
    KafkaEosError,
    TerminalError,
)
from airflow_kafka_eos.kafka.client.settings import KafkaSettings

P = ParamSpec("P")
T = TypeVar("T")

_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
#: OpenSSL's words for what a broker says of a client's certificate (RFC 8446, 6.2)
_ALERTS = (
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_",
    "ALERT_UNKNOWN_CA",
    "ALERT_UNSUPPORTED_CERTIFICATE",
)
_AUTHENTICATION = (
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
    errors.AuthorizationError,
)
#: the feature of KIP-890
TRANSACTION_VERSION = "transaction.version"
#: Bytes of a piece that is rather copied than sent on its own.
_COPIED = 32 * 1024
#: Loggers whose errors nobody else tells.
_OF_BUGS = frozenset({"kafka.future", "kafka.net.selector"})
#: Loggers that write requests and their bytes at DEBUG; those of a login are the password (seen).
_OF_REQUESTS = frozenset({"kafka.net.connection", "kafka.protocol.parser"})


class _Depth(threading.local):
    calls = 0


_ours = _Depth()


def at_debug(work: Callable[P, T]) -> Callable[P, T]:
    """What kafka-python logs inside is logged at DEBUG."""

    @wraps(work)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> T:
        _ours.calls += 1
        try:
            return work(*args, **kwargs)
        finally:
            _ours.calls -= 1

    return quiet


class _AtDebug(logging.Filter):
    """On the logger itself: filters are not inherited, and a handler's would be Airflow's."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return record.name not in _OF_REQUESTS
        if _ours.calls == 0 or (record.name in _OF_BUGS and record.levelno >= logging.ERROR):
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def loggers() -> list[str]:
    """Names of all that kafka-python's network code logs by, as far as it is imported."""
    return sorted(n for n in list(logging.root.manager.loggerDict) if n.partition(".")[0] == "kafka")


for _name in loggers():
    logging.getLogger(_name).addFilter(_AtDebug())


class Loop(NetworkSelector):  # type: ignore[misc]
    """kafka-python's I/O, which logs at DEBUG only what it does for us."""

    @at_debug
    def _poll_once(self, *args: Any, **options: Any) -> Any:
        return super()._poll_once(*args, **options)

    @at_debug
    def close(self) -> None:
        super().close()


class Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Remembers why a connection failed, so that the error can say it, and stops at a refused login.

    kafka-python's own bootstrap tries a wrong password again until its deadline: ``_connect`` forgets the refusal
    as soon as ``initialize``, which does not raise, has returned.
    """

    last_failure: Exception | None = None
    refusal: Exception | None = None

    def __init__(self, net: Loop, settings: KafkaSettings, **arguments: Any) -> None:
        super().__init__(net, **arguments)
        #: the cluster's features, as a broker showed them when it was connected to last
        self.features: dict[str, int] = {}
        self._settings = settings

    @at_debug
    def get_connection(self, node_id: Any, **options: Any) -> Any:
        connection = super().get_connection(node_id, **options)
        if not connection.init_future.is_done:
            connection.init_future.add_errback(self._remember)
            connection.connection_made = _with_pieces(connection)
            connection._send_request = self._reading_features(connection._send_request)
        return connection

    @at_debug
    def bootstrap_async(self, *args: Any, **options: Any) -> Any:
        return super().bootstrap_async(*args, **options)

    @at_debug
    def close(self, *args: Any, **options: Any) -> Any:
        return super().close(*args, **options)

    @at_debug
    def another_connection(self, node_id: int) -> Any:
        """One more connection to a broker, with a login of its own. The caller closes it."""
        node = self.cluster.broker_metadata(node_id)
        if node is None:
            raise errors.UnknownBrokerIdError(node_id)
        self.maybe_raise_auth_failure(node_id)
        connection = KafkaConnection(
            self._net, node_id=node_id, broker_version_data=self.broker_version_data, **self.config
        )
        connection.init_future.add_errback(self._remember)
        timeout_at = time.monotonic() + self.socket_connection_setup_timeout_ms(node_id) / 1000
        self._net.call_soon(lambda: self._connect(node, connection, timeout_at=timeout_at))
        return connection

    async def _build_transport(self, node: Any, **options: Any) -> Any:
        transport = await super()._build_transport(node, **options)
        transport._sock_recv = _data_before_end(transport._sock_recv)
        transport.write = _in_pieces(transport)
        return transport

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _reading_features(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """kafka-python reads the versions out of ApiVersions' answer, and drops the features (KIP-584)."""

        def send_request(request: Any, **options: Any) -> Any:
            future = send(request, **options)
            if isinstance(request, ApiVersionsRequest):
                future.add_callback(self._note_features)
            return future

        return send_request

    def _note_features(self, answer: Any) -> None:
        if answer.error_code == 0:
            self.features = finalized(answer)

    def _remember(self, error: Exception) -> None:
        self.last_failure = error
        if isinstance(error, (*_AUTHENTICATION, TerminalError)) or any(x in str(error) for x in (_UNTRUSTED, *_ALERTS)):
            self.refusal = error

    # -- in words ------------------------------------------------------------------------------------------------

    def explained(self, error: BaseException) -> KafkaEosError | BaseException:
        """What an exception of kafka-python's connection layer means. Never shows a credential."""
        where = f"the Kafka brokers at {self._settings.bootstrap_servers}"
        if isinstance(error, KafkaEosError):
            return error  # a token that could not be had
        if isinstance(error, _AUTHENTICATION):
            by_token = self._settings.sasl_mechanism == "OAUTHBEARER"
            checked = "oauth_cb or sasl.oauthbearer.*" if by_token else "sasl.username and sasl.password"
            protocol = self._settings.security_protocol
            return AccessError(
                f"{where} refused the login ({type(error).__name__}; security.protocol {protocol})",
                remedy=f"Check security.protocol, sasl.mechanism, {checked} of the Kafka connection",
            )
        if any(alert in str(error) for alert in _ALERTS):
            return AccessError(
                f"{where} refused the client's certificate: {error}",
                remedy="Check ssl.certificate.location and ssl.key.location of the Kafka connection, or its keystore",
            )
        if _UNTRUSTED in str(error):
            return AccessError(
                f"the certificate of {where} could not be verified: {error}",
                remedy="Check ssl.ca.location of the Kafka connection, and the host names in bootstrap.servers",
            )
        if isinstance(error, errors.UnsupportedVersionError):
            return BrokerTooOldError(
                f"{where} lack a request: {error}",
                remedy="Kafka 3.9 or newer has all of them; `airflow-kafka-eos doctor` says which broker lacks what",
            )
        if not isinstance(error, (errors.KafkaError, OSError)):
            return error
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if (last := self.last_failure) is not None and last is not error:
            reason += f" (last connection failure: {type(last).__name__}: {last})"
        return self.unreachable(reason)

    def unreachable(self, reason: str) -> BrokerUnavailableError:
        """No broker answers, and why."""
        return BrokerUnavailableError(
            f"the Kafka brokers at {self._settings.bootstrap_servers} cannot be reached: {reason}",
            remedy="Check bootstrap.servers and security.protocol of the Kafka settings, and that the brokers are up",
        )


def finalized(answer: Any) -> dict[str, int]:
    """The levels that the cluster goes by, of each feature that an ApiVersions answer shows (KIP-584)."""
    return {f.name: int(f.max_version_level) for f in answer.finalized_features or []}


def sends_at_once(connection: Any) -> bool:
    """Whether it keeps no request: in the middle of a first login, or of a new one, it would, however many are."""
    return bool(connection.connected and not connection.paused and not connection._reauth.is_reauthenticating)


class Pieces(list[Any]):
    """A frame that is sent piece by piece, from where the pieces lie."""


class RequestInPieces:
    """A request whose header and answer are kafka-python's, and whose body is ours: it is sent, and not copied.

    kafka-python chooses its version when it is sent, by what that very broker offers.

    :param body: makes it, in a version.
    """

    def __init__(self, request: Any, body: Callable[[int], Sequence[Any]]) -> None:
        self.API_KEY, self.name = request.API_KEY, request.name
        self.min_version, self._min_version = request.min_version, request._min_version
        self.max_version, self._max_version = request.max_version, request._max_version
        self._request = request
        self._body = body

    @property
    def API_VERSION(self) -> int | None:
        version: int | None = self._request.API_VERSION
        return version

    @API_VERSION.setter
    def API_VERSION(self, version: int) -> None:
        self._request.API_VERSION = version

    @property
    def header(self) -> Any:
        return self._request.header

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self._request.with_header(correlation_id=correlation_id, client_id=client_id)

    def expect_response(self) -> bool:
        return True

    def encode(self, *, framed: bool, header: bool) -> Pieces:
        """The whole frame, in as few pieces as may be: each costs a system call, and on TLS a record of its own."""
        assert framed and header
        assert self.API_VERSION is not None
        pieces = [self._request.encode_header(flexible=True), *self._body(self.API_VERSION)]
        found, small = Pieces(), [sum(map(len, pieces)).to_bytes(4, "big")]
        for piece in pieces:
            if len(piece) < _COPIED:
                small.append(piece)
            else:
                found += [b"".join(small), piece] if small else [piece]
                small = []
        return Pieces([*found, b"".join(small)] if small else found)


def _with_pieces(connection: Any) -> Callable[[Any], None]:
    """Requests that waited (for a login, for a throttled connection) are sent together: joined, they must be bytes."""
    made = connection.connection_made

    def send_bytes() -> Any:
        frames, connection.parser.bytes_to_send = connection.parser.bytes_to_send, []
        return Pieces(p for frame in frames for p in (frame if isinstance(frame, Pieces) else [frame]))

    def connection_made(transport: Any) -> None:
        made(transport)
        connection.parser.send_bytes = send_bytes

    return connection_made


def _in_pieces(transport: Any) -> Callable[[Any], None]:
    whole = transport.write

    def write(data: Any) -> None:
        if isinstance(data, Pieces):
            transport.writelines(data)
        else:
            whole(data)

    return write


def _data_before_end(receive: Callable[[], tuple[bytes, Exception | None]]) -> Callable[[], Any]:
    """kafka-python throws away what was read together with the end of the stream: the answer "wrong password"."""
    end: list[Exception] = []

    def one_after_the_other() -> tuple[bytes, Exception | None]:
        if end:
            return b"", end.pop()
        data, error = receive()
        if data and error is not None:
            end.append(error)
            return data, None
        return data, error

    return one_after_the_other
