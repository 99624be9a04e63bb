"""Each thing of kafka-python that is used and is not its public API, and what we rely on. No broker needed.

A new kafka-python that changes one of them fails here with a sentence that says what to look at, before it fails
somewhere deep in a load. What follows when ``kafka.net.selector`` goes is written down in docs/adr/0025.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka.version import __version__

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_kafka_eos"
CLIENT = PACKAGE / "kafka" / "client"

_MANAGER = "kafka.net.manager:KafkaConnectionManager"
_CONNECTION = "kafka.net.connection:KafkaConnection"
_SELECTOR = "kafka.net.selector:NetworkSelector"
_TRANSPORT = "kafka.net.transport:KafkaTCPTransport"
_PARSER = "kafka.protocol.parser:KafkaProtocol"
_FUTURE = "kafka.future:Future"

#: Callable -> the parameters that we pass, or that a method of ours in its place takes; and what we rely on.
CALLED = {
    f"{_SELECTOR}._poll_once": ("timeout", "each turn of its loop goes through it: there its log is turned down"),
    f"{_SELECTOR}.poll": ("timeout_ms future", "runs the loop in the caller's thread until the future is done"),
    f"{_SELECTOR}.wakeup": ("", "ends a poll that waits, from any thread"),
    f"{_SELECTOR}.call_soon": ("task", "runs a coroutine function in the loop's next turn"),
    f"{_SELECTOR}.close": ("", "closes the loop's own sockets"),
    f"{_MANAGER}.__init__": ("net", "the loop is ours to give and to close"),
    f"{_MANAGER}.bootstrap_async": ("timeout_ms", "finds the cluster; a future"),
    f"{_MANAGER}.get_connection": ("node_id", "makes or finds the connection to a broker"),
    f"{_MANAGER}._build_transport": ("node timeout_at", "a coroutine that makes a connection's transport"),
    f"{_MANAGER}._connect": ("node conn timeout_at", "a coroutine that connects, and logs in on, a connection of ours"),
    f"{_MANAGER}.maybe_raise_auth_failure": ("node_id", "asked before each connection: there refused logins end"),
    f"{_MANAGER}.socket_connection_setup_timeout_ms": ("node_id", "how long connecting may take"),
    f"{_MANAGER}.least_loaded_node": ("", "which broker to ask"),
    f"{_MANAGER}.least_used_connections": ("", "those that are open"),
    f"{_MANAGER}.send": ("request node_id request_timeout_ms", "sends a request to a broker; a future"),
    f"{_MANAGER}.call_soon": ("coro", "runs a function in the loop, and gives a future of what it returns"),
    f"{_MANAGER}.close": ("", "closes all connections"),
    f"{_CONNECTION}.__init__": ("net node_id broker_version_data", "takes the manager's settings as keywords"),
    f"{_CONNECTION}._send_request": ("request", "sends ApiVersions too: its answer has the cluster's features"),
    f"{_CONNECTION}.send_request": ("request request_timeout_ms", "sends a request; a future"),
    f"{_CONNECTION}.connection_made": ("transport", "makes the connection's parser"),
    f"{_CONNECTION}.close": ("error", "closes it; what is under way fails with the error"),
    f"{_TRANSPORT}._sock_recv": ("", "reads what is there: bytes, and the error that ended the stream"),
    f"{_TRANSPORT}.write": ("data", "sends bytes"),
    f"{_TRANSPORT}.writelines": ("list_of_data", "sends pieces one after the other, without joining them"),
    f"{_PARSER}.send_request": ("request", "calls with_header, encode, expect_response and header of any request"),
    f"{_PARSER}.send_bytes": ("", "gives all that is to be sent"),
    **{f"{_FUTURE}.{name}": ("f", "calls back") for name in ("add_callback", "add_errback", "add_both")},
    f"{_FUTURE}.success": ("value", "ends a poll that waits for it"),
    "kafka.cluster:ClusterMetadata.update_metadata": ("metadata", "takes in a MetadataResponse"),
    "kafka.cluster:ClusterMetadata.refresh_metadata": ("", "asks who is there"),
    "kafka.cluster:ClusterMetadata.request_update": ("", "has it asked soon"),
    "kafka.cluster:ClusterMetadata.broker_metadata": ("broker_id", "a broker's address; None when it is not known"),
    "kafka.cluster:ClusterMetadata.brokers": ("", "all that are known"),
    "kafka.protocol.broker_version_data:BrokerVersionData.api_version": ("operation", "the highest common version"),
    "kafka.protocol.api_message:ApiMessage.encode_header": ("flexible", "a request's header, for a body of ours"),
    "kafka.net.sasl.oauth:AbstractTokenProvider.token": ("", "asked for a token at each login"),
    "kafka.net.sasl.oauth:AbstractTokenProvider.extensions": ("", "asked for the login's extensions"),
}


def said(name: str, what: str) -> str:
    return f"kafka-python {__version__} has changed {name}, of which airflow_kafka_eos/kafka/client relies on: {what}"


def found(name: str) -> Any:
    module, _, path = name.partition(":")
    thing: Any = importlib.import_module(module)
    for part in path.split("."):
        thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize("name", CALLED)
def test_what_is_called_takes_what_we_pass(name: str) -> None:
    wanted, what = CALLED[name]
    try:
        parameters = inspect.signature(found(name)).parameters
    except (ImportError, AttributeError):
        pytest.fail(said(name, what))
    missing = [p for p in wanted.split() if p not in parameters]
    assert not missing, said(name, f"{what} (without {', '.join(missing)})")


@pytest.fixture
def manager() -> Iterator[Any]:
    # not above: where kafka-python has changed, the sentences are to come first
    from airflow_kafka_eos.kafka.client.connections import Loop, Manager
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings

    settings = KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:9"})
    with closing(Loop(client_id="contract")) as net, closing(Manager(net, settings, client_id="contract")) as made:
        yield made


def test_objects_have_the_attributes_that_we_read(manager: Any) -> None:
    connection = found(_CONNECTION)(manager._net, node_id=1, client_id="contract")
    objects = {
        _MANAGER: (manager, "_net config cluster broker_version_data bootstrapped"),
        _CONNECTION: (
            connection,
            "init_future connected closed paused in_flight_requests parser _reauth",
        ),
        "kafka.net.connection:SaslReauthenticator": (connection._reauth, "is_reauthenticating"),
        _PARSER: (found(_PARSER)(client_id="contract"), "bytes_to_send"),
        _FUTURE: (found(_FUTURE)(), "is_done exception value succeeded failed"),
        "kafka.cluster:ClusterMetadata": (manager.cluster, "cluster_id"),
    }
    for name, (thing, attributes) in objects.items():
        for attribute in attributes.split():
            assert hasattr(thing, attribute), said(f"{name}.{attribute}", "that it is there")
    assert {"max_in_flight_requests_per_connection", "reconnect_backoff_max_ms", "receive_message_max_bytes"} <= set(
        manager.config
    ), said(f"{_MANAGER}.DEFAULT_CONFIG", "settings of these names")


def test_what_is_overridden_is_a_coroutine_where_it_is_awaited() -> None:
    for name in (f"{_MANAGER}._build_transport", f"{_MANAGER}._connect"):
        assert asyncio.iscoroutinefunction(found(name)), said(name, "that it is a coroutine")


def test_what_is_read_together_with_the_end_comes_together() -> None:
    """kafka-python then drops the bytes. When it does not do so any more, ``_data_before_end`` can go."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        theirs.sendall(b"wrong password")
        theirs.close()
        data, error = found(_TRANSPORT)(None, ours)._sock_recv()
    assert (data, error is not None) == (b"wrong password", True), said(f"{_TRANSPORT}._sock_recv", "both at once")


def test_a_request_that_is_joined_must_be_bytes() -> None:
    """So requests that waited are sent as :class:`~airflow_kafka_eos.kafka.client.connections.Pieces`."""
    parser = found(_PARSER)(client_id="contract")
    parser.bytes_to_send = [b"a", b"b"]
    assert (parser.send_bytes(), parser.bytes_to_send) == (b"ab", []), said(f"{_PARSER}.send_bytes", "the bytes joined")


def test_loggers_have_the_names_that_are_filtered_by() -> None:
    for module in ("kafka.future", "kafka.net.selector", "kafka.net.connection", "kafka.protocol.parser"):
        name = importlib.import_module(module).log.name
        assert name == module, said(f"{module}.log", "that it is named as its module")


def test_an_answer_to_api_versions_shows_the_clusters_features() -> None:
    response = found("kafka.protocol.metadata:ApiVersionsResponse")
    feature = response.FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=0)
    assert (feature.name, feature.max_version_level) == ("transaction.version", 2)


# -- nobody else ------------------------------------------------------------------------------------------------------

#: What other rooms may import: its public API, its errors, and the messages of Kafka's protocol.
PUBLIC = ("kafka", "kafka.errors", "kafka.protocol.metadata", "kafka.protocol.admin", "kafka.protocol.consumer",
          "kafka.protocol.producer")  # fmt: skip


def trees(below: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(below.rglob("*.py")):
        if not path.is_relative_to(CLIENT):
            yield path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))


def test_nobody_but_the_client_room_imports_what_is_private() -> None:
    wrong = []
    for path, tree in trees(PACKAGE):
        for node in ast.walk(tree):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in named:
                is_public = name == "kafka" or any(f"{name}.".startswith(f"{p}.") for p in PUBLIC[1:])
                if name.split(".")[0] == "kafka" and not is_public:
                    wrong.append(f"{path}:{getattr(node, 'lineno', 0)} imports {name}")
    assert wrong == [], "only kafka/client may"


def test_nobody_but_the_client_room_reaches_into_objects() -> None:
    """confluent_kafka's error codes of its own have an underscore too, and are its public API."""
    wrong = []
    for path, tree in trees(PACKAGE / "kafka"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                of = node.value.id if isinstance(node.value, ast.Name) else ""
                # Wire's own two are kafka-python's, and not a subclass's to use either
                if of not in ("self", "cls", "KafkaError") or node.attr in ("_manager", "_net"):
                    wrong.append(f"{path}:{node.lineno} reads {ast.unparse(node)}")
    assert wrong == [], "only kafka/client may"
