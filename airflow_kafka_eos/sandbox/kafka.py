"""A real Kafka at hand: one or three brokers in KRaft mode on loopback, for demo, tests and benchmarks.

with LocalKafka() as kafka:
    kafka.create_topic("orders", partitions=3)
    Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "..."})
"""

from __future__ import annotations

import atexit
import base64
import os
import re
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_kafka_eos.errors import BrokerUnavailableError, ConfigurationError, SandboxError
from airflow_kafka_eos.reasons import how_it_ended
from airflow_kafka_eos.sandbox import broker
from airflow_kafka_eos.sandbox.broker import KAFKA_MAIN, BrokerProcess, Node, format_storage, java_command
from airflow_kafka_eos.sandbox.jars import DEFAULT_KAFKA, QUICK_JVM, find_java, full_version, kafka_jars
from airflow_kafka_eos.sandbox.keeping import (
    HOST,
    Keeper,
    Progress,
    Restarts,
    Running,
    free_ports,
    is_free,
    log_tail,
)

__all__ = ["LocalKafka"]

#: The feature that decides whether an end of a transaction raises its producer's epoch (KIP-890).
TRANSACTION_VERSION = "transaction.version"
READY_SECONDS = 60.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05

_running: weakref.WeakSet[LocalKafka] = weakref.WeakSet()


class LocalKafka(Running):
    """A Kafka of this process. Listens on 127.0.0.1 only, and ends with the process, however that ends.

    :param version: ``4.4.0``, or ``4.4`` for the newest patch known (3.9, 4.0, 4.1, 4.2, 4.3, 4.4).
    :param brokers: 1 or 3; each is a controller too.
    :param data_dir: kept on stop and used again; a temporary folder, deleted on stop, when None.
    :param broker_settings: server properties that win over the sandbox's own.
    :param heap: each broker's ``-Xmx``.
    :param log: gets short lines for people.
    :param jvm_options: replaces the options that favour a quick start over a high throughput.
    :param transaction_version: level of the feature ``transaction.version``, when the storage is formatted: 0, 1 or 2
        (KIP-890), 0 only before 4.0; None: the version's own default.
    :param port: where the first broker listens, the same each time; None: any free one.
    :param start_again: a broker that ends by itself, not by :meth:`kill`, is named in the log and started again.
    """

    def __init__(
        self,
        version: str = DEFAULT_KAFKA,
        brokers: int = 1,
        data_dir: Path | None = None,
        broker_settings: Mapping[str, str] | None = None,
        heap: str = "512m",
        log: Callable[[str], None] | None = None,
        jvm_options: Sequence[str] = QUICK_JVM,
        transaction_version: int | None = None,
        port: int | None = None,
        start_again: bool = False,
    ) -> None:
        if brokers not in (1, 3):
            raise ConfigurationError(f"brokers={brokers} is not supported", remedy="Use 1 or 3")
        self.version = full_version(version)
        self.brokers = brokers
        self.broker_settings = dict(broker_settings or {})
        self.transaction_version = transaction_version
        self._data_dir = data_dir
        self._port = port
        self._jvm_options = [f"-Xmx{heap}", *jvm_options]
        self._log = log or (lambda line: None)
        self._root: Path | None = None
        self._nodes: dict[int, Node] = {}
        self._processes: dict[int, BrokerProcess] = {}
        self._command: list[str] = []
        self._owner = os.getpid()
        self._start_again = start_again
        self._keeper: Keeper | None = None
        self._restarts = Restarts()

    @property
    def bootstrap_servers(self) -> str:
        """``127.0.0.1:port,...`` of all nodes, running or not."""
        return ",".join(node.address for node in self._nodes.values())

    @property
    def node_ids(self) -> list[int]:
        """1, or 1 to 3."""
        return list(self._nodes)

    @property
    def running_ids(self) -> list[int]:
        """Those of :attr:`node_ids` that have not been killed."""
        return sorted(self._processes)

    def address(self, node: int) -> str:
        """``127.0.0.1:port`` of one node."""
        return self._node(node).address

    def log_file(self, node: int = 1) -> Path:
        """Where a node's log is."""
        return self._node(node).log

    def start(self) -> None:
        """Start all nodes and wait until transactions work.

        :raises ToolMissingError: no Java 17, or no Maven while the jars are not cached.
        :raises ConfigurationError: somebody else listens on ``port``.
        :raises SandboxError: Maven failed, or a broker died; with the tail of its log.
        :raises BrokerUnavailableError: not ready within a minute.
        """
        if self._nodes:
            raise ConfigurationError("This LocalKafka is started already", remedy="Use restart()")
        java = find_java()
        jars = kafka_jars(self.version, self._log)
        self._command = java_command(java, jars, KAFKA_MAIN, self._jvm_options)
        self._root = self._data_dir or Path(tempfile.mkdtemp(prefix="airflow-kafka-eos-"))
        self._nodes = _nodes(self._root, self.brokers, self._port)
        _running.add(self)
        try:
            nodes = list(self._nodes.values())
            for node in nodes:
                node.folder.mkdir(parents=True, exist_ok=True)
                settings = broker.server_settings(node, nodes, self.broker_settings)
                node.properties.touch(mode=0o600)  # broker_settings may hold passwords
                node.properties.write_text(broker.properties_text(settings))
            features = {} if self.transaction_version is None else {TRANSACTION_VERSION: self.transaction_version}
            format_storage(java, jars, nodes, _cluster_id(self._root), features)
            self._run(self.node_ids)
            self.wait_ready()
            if self._start_again:
                self._keeper = Keeper("Kafka", self._look, self._log)
                self._keeper.start()
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Call it in loops that wait for this Kafka, where its brokers are started again.

        :raises SandboxError: one has ended too often; with the tail of its log.
        """
        if self._keeper is not None:
            self._keeper.check()

    def stop(self) -> None:
        """End all nodes; safe to call twice. Orderly when the data is kept, else at once."""
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None
        for process in self._processes.values():
            if self._data_dir:
                process.terminate()
            else:
                process.kill()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            process.stop(max(0.0, deadline - time.monotonic()))
        self._processes.clear()
        self._nodes.clear()
        _running.discard(self)
        if self._root and not self._data_dir:
            shutil.rmtree(self._root, ignore_errors=True)
        self._root = None

    def kill(self, node: int | None = None) -> None:
        """SIGKILL one node, or all of them. They stay down until :meth:`restart`."""
        for one in self._chosen(node):
            if process := self._processes.pop(one, None):
                process.kill()

    def restart(self, node: int | None = None) -> None:
        """Start one node, or all, again with the same data and ports; what still runs is stopped first.

        :raises SandboxError, BrokerUnavailableError: as :meth:`start`.
        """
        chosen = self._chosen(node)
        # taken out first: what is in it and has ended has ended by itself
        ending = [self._processes.pop(one) for one in chosen if one in self._processes]
        for process in ending:
            process.terminate()
        for process in ending:
            process.stop(STOP_SECONDS)
        self._run(chosen)
        self.wait_ready()

    def pause(self, node: int | None = None) -> None:
        """SIGSTOP one node, or all that run: silent, and not dead, until :meth:`resume`."""
        for one in self._chosen(node):
            if process := self._processes.get(one):
                process.pause()

    def resume(self, node: int | None = None) -> None:
        """Let what was paused go on."""
        for one in self._chosen(node):
            if process := self._processes.get(one):
                process.resume()

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait until transactions work on every node that has not been killed.

        :param timeout: seconds.
        :raises SandboxError: a broker ended by itself; with the tail of its log.
        :raises BrokerUnavailableError: not ready in time; with what was missing.
        """
        begun = time.monotonic()
        addresses = [self._nodes[one].address for one in self._processes]
        nodes = list(self._nodes.values())
        settings = broker.server_settings(nodes[0], nodes, self.broker_settings)
        partitions = int(settings["transaction.state.log.num.partitions"])
        self._until(lambda: broker.why_not_ready(addresses, partitions), timeout)
        who = ", ".join(f"{one} ({self._nodes[one].address})" for one in self._processes)
        self._log(f"Kafka {self.version}: broker {who} answers after {time.monotonic() - begun:.1f} s")

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until all running nodes know its leaders.

        :param replication: copies of each partition; by default as many as there are brokers.
        :raises ConfigurationError: the broker refuses it.
        """
        addresses = [self._nodes[one].address for one in self._processes]
        copies = replication or min(3, self.brokers)
        broker.create_topic(
            addresses, name, partitions, copies, config or {}, lambda check: self._until(check, READY_SECONDS)
        )

    def _run(self, nodes: Sequence[int]) -> None:
        for one in nodes:
            node = self._nodes[one]
            self._processes[one] = BrokerProcess(node, [*self._command, str(node.properties)])

    def _look(self) -> None:
        """Which brokers have ended. Nobody else starts or ends any while this one looks (see ``start_again``)."""
        for one, process in list(self._processes.items()):
            if process.exit_code is not None:
                story = f"broker {one} ended by itself ({how_it_ended(process.exit_code)})"
                end = f"its log ends with:\n{log_tail(process.node.log)}\n"
                number = self._restarts.one_more(f"broker {one}", end, f"See {process.node.log}")
                self._run([one])
                self._log(f"{story}; started again ({number}), its log: {process.node.log}")

    def _until(self, missing: Callable[[], str | None], timeout: float) -> None:
        deadline, progress = time.monotonic() + timeout, Progress(self._log)
        while (reason := _answer(missing)) is not None:
            progress.say(f"Kafka: {reason}")
            self._raise_if_dead()
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(
                    f"Kafka {self.version} is not ready after {timeout:g} s: {reason}. Its log ends with:\n"
                    f"{log_tail(next(iter(self._nodes.values())).log)}\n",
                    remedy="Look at the log, or give the machine more time",
                )
            time.sleep(POLL_SECONDS)

    def _raise_if_dead(self) -> None:
        if self._keeper is not None and self._keeper.is_looking:
            self._keeper.check()
            return
        for one, process in self._processes.items():
            if process.exit_code is not None:
                raise SandboxError(
                    f"Broker {one} of Kafka {self.version} ended by itself (exit code {process.exit_code}). "
                    f"Its log ends with:\n{log_tail(process.node.log)}\n",
                    remedy="Look at the broker settings, the heap and the data folder",
                )

    def _chosen(self, node: int | None) -> list[int]:
        return self.node_ids if node is None else [self._node(node).id]

    def _node(self, node: int) -> Node:
        if node not in self._nodes:
            raise ConfigurationError(
                f"There is no node {node}", remedy=f"Use one of {self.node_ids}, after start()"
            )
        return self._nodes[node]


def _answer(missing: Callable[[], str | None]) -> str | None:
    try:
        return missing()
    except OSError as error:
        return f"a broker does not answer ({error})"


def _nodes(root: Path, brokers: int, port: int | None) -> dict[int, Node]:
    if port is not None and not is_free(port):
        raise ConfigurationError(
            f"somebody listens on {HOST}:{port} already", remedy="End that one, or pass another port"
        )
    ports = iter(([] if port is None else [port]) + free_ports(2 * brokers))
    return {one: Node(one, next(ports), next(ports), root / f"node-{one}") for one in range(1, brokers + 1)}


def _cluster_id(root: Path) -> str:
    """A Kafka cluster id (22 characters of base64), the same for one data folder.

    As Kafka's own ``Uuid.randomUuid`` it begins with no dash: commands would take it for an option.
    """
    file = root / "cluster-id"
    if not file.exists():
        # an "A" instead loses 1/64 of the ids, and no loop is needed
        file.write_text(re.sub("^-", "A", base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")))
    return file.read_text()


def _stop_all() -> None:
    for kafka in list(_running):
        # a forked child inherits the list, but not the brokers
        if kafka._owner == os.getpid():
            kafka.stop()


atexit.register(_stop_all)
