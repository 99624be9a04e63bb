"""The few requests that tell whether a sandbox broker is of use, over one blocking socket at a time.

Plain sockets, because a client library would hide what is asked here: whether *this* node answers *now*.
No request leaves a trace: none of them creates a transactional id, a group or a topic of the user's.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError

REQUEST_SECONDS = 5.0
GROUP, TRANSACTION = 0, 1
# DescribeTransactions of an unknown id: the coordinator has loaded and looked it up
OK, TRANSACTIONAL_ID_NOT_FOUND = 0, 105
TOPIC_ALREADY_EXISTS = 36
# the controller cannot be reached, is being elected, or does not know enough brokers yet
NOT_CONTROLLER, REQUEST_TIMED_OUT, INVALID_REPLICATION_FACTOR, BROKER_NOT_AVAILABLE = 41, 7, 38, 8


class TopicExists(ConfigurationError):
    """There is a topic of that name."""


def ask(address: str, request: Any) -> Any:
    """Send one kafka-python request message to ``host:port`` and decode its answer.

    :raises OSError: no answer.
    """
    host, port = address.rsplit(":", 1)
    request.with_header(correlation_id=1, client_id="airflow-kafka-eos-sandbox")
    with socket.create_connection((host, int(port)), timeout=REQUEST_SECONDS) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
    return request.header.get_response_class().decode(answer, header=True)


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        parts += part
    return bytes(parts)


def why_not_ready(addresses: Sequence[str], transaction_log_partitions: int) -> str | None:
    """What is still missing before transactions work, or None when nothing is.

    Ready means: every node knows all the others, every partition of the transaction log has a coordinator that
    has loaded it, the group coordinator is there, and every node has producer ids to hand out.

    :param addresses: ``host:port`` of every node that should be up.
    :raises OSError: one of them does not answer at all.
    """
    checks = (_all_registered, _transaction_coordinators, _group_coordinator, _producer_ids)
    found = (check(addresses, transaction_log_partitions) for check in checks)
    return next(filter(None, found), None)


def _all_registered(addresses: Sequence[str], partitions: int) -> str | None:
    for address in addresses:
        known = _brokers(address)
        missing = [other for other in addresses if other not in known.values()]
        if missing:
            return f"{address} does not know {', '.join(missing)} yet"
    return None


def _brokers(address: str) -> dict[int, str]:
    from kafka.protocol.metadata import MetadataRequest

    answer = ask(address, MetadataRequest(topics=[], allow_auto_topic_creation=False, version=5))
    return {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}


def _transaction_coordinators(addresses: Sequence[str], partitions: int) -> str | None:
    from kafka.protocol.admin import DescribeTransactionsRequest

    # an id of one letter hashes to its code point (Java's String.hashCode), so these hit every partition once
    for letter in map(chr, range(ord("a"), ord("a") + partitions)):
        coordinator, code = _coordinator(addresses[0], letter, TRANSACTION)
        if coordinator is None:
            return f"no transaction coordinator for partition of {letter!r} (error {code})"
        state = ask(coordinator, DescribeTransactionsRequest(transactional_ids=[letter], version=0))
        code = state.transaction_states[0].error_code
        if code not in (OK, TRANSACTIONAL_ID_NOT_FOUND):
            return f"the transaction coordinator at {coordinator} is not ready (error {code})"
    return None


def _group_coordinator(addresses: Sequence[str], partitions: int) -> str | None:
    coordinator, code = _coordinator(addresses[0], "a", GROUP)
    return None if coordinator else f"no group coordinator (error {code})"


def _coordinator(address: str, key: str, key_type: int) -> tuple[str | None, int]:
    from kafka.protocol.metadata import FindCoordinatorRequest

    answer = ask(address, FindCoordinatorRequest(key=key, key_type=key_type, version=2))
    return (f"{answer.host}:{answer.port}" if answer.error_code == OK else None), answer.error_code


def _producer_ids(addresses: Sequence[str], partitions: int) -> str | None:
    from kafka.protocol.producer import InitProducerIdRequest

    for address in addresses:
        answer = ask(
            address, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, version=4)
        )
        if answer.error_code != OK:
            return f"{address} has no producer ids yet (error {answer.error_code})"
    return None


def create_topic(
    addresses: Sequence[str], name: str, partitions: int, replication: int, config: Mapping[str, str],
    wait: Callable[[Callable[[], str | None]], None],
) -> None:  # fmt: skip
    """Create a topic and wait until every node names a leader for all of its partitions.

    :param wait: calls what it is given until that returns None (what is missing), or raises.
    :raises TopicExists: there is one of that name.
    :raises ConfigurationError: the broker refuses the topic.
    """
    wait(lambda: _try_create(addresses[0], name, partitions, replication, config))
    wait(lambda: next(filter(None, (_leaderless(address, name, partitions) for address in addresses)), None))


def _try_create(
    address: str, name: str, partitions: int, replication: int, config: Mapping[str, str]
) -> str | None:
    from kafka.protocol.admin import CreateTopicsRequest

    kind = CreateTopicsRequest.CreatableTopic
    configs = [kind.CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    topic = kind(
        name=name, num_partitions=partitions, replication_factor=replication, assignments=[], configs=configs
    )
    answer = ask(
        address, CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=False, version=4)
    ).topics[0]
    if answer.error_code == OK:
        return None
    said = f"topic {name!r} was refused with error {answer.error_code}: {answer.error_message}"
    if answer.error_code in (NOT_CONTROLLER, REQUEST_TIMED_OUT, BROKER_NOT_AVAILABLE):
        return said
    if answer.error_code == TOPIC_ALREADY_EXISTS:
        raise TopicExists(said, remedy="Use another name")
    raise ConfigurationError(said, remedy="Look at its partitions and config")


def _leaderless(address: str, name: str, partitions: int) -> str | None:
    from kafka.protocol.metadata import MetadataRequest

    wanted = [MetadataRequest.MetadataRequestTopic(name=name)]
    answer = ask(address, MetadataRequest(topics=wanted, allow_auto_topic_creation=False, version=5)).topics[
        0
    ]
    led = sum(partition.error_code == OK and partition.leader_id >= 0 for partition in answer.partitions)
    return None if led == partitions else f"{address} sees {led} of {partitions} leaders of topic {name!r}"
