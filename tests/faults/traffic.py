"""Other applications that write into the same topics all the while: what becomes of theirs is judged too.

librdkafka's producers, in threads of this process. A transaction's fate is what its client was told. Nobody but its
own client may end it: where somebody else did (the client finds itself fenced, and has not begun anew under its id),
its fate is what the client wanted, so that the checkers miss it where it should be.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from confluent_kafka import KafkaError as E
from confluent_kafka import KafkaException, Producer

from tests.faults.facts import Fate, ForeignFact, PlainFact, Value
from tests.faults.visible import FOREIGN, PLAIN

#: Longer than any run: no broker aborts them by itself.
TRANSACTION_TIMEOUT_MS = 600_000
#: Seconds to go on trying, until a fate is unknown. Brokers are down for less.
PATIENCE_S = 40.0
#: One call's share of that.
_CALL_S = 5.0
#: Somebody else ended the transaction, or took its id.
TOUCHED = {E._FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH, E.INVALID_TXN_STATE}
KEYS = 20
VALUE_BYTES = 100
#: other deployments' ids differ from ours in the ledger's random part only
OTHER_LEDGER = "0123456789"
_QUIET = {"log_level": 0, "log.connection.close": False, "socket.timeout.ms": 10_000, "reconnect.backoff.max.ms": 500}


def their_prefix(name_prefix: str, ledger_id: str, naming: str, key: str) -> str:
    """What transactional ids of another application begin with, before their number: of the kind that a deployment with
    another ledger hands out. But for the ledger's part they are ours."""
    end = "p0-0-" if naming == "pooling" else f"{key}.1-0-"
    return name_prefix.replace(ledger_id, OTHER_LEDGER) + end


class Applications:
    """A transactional producer and a plain one, until they are stopped.

    :param topics: what they write to.
    :param transactional_id: may look like ours, and must not be.
    :param pause_s: longest pause between two transactions, or two bursts of plain records.
    :param keys: of how many keys their records are.
    """

    def __init__(
        self,
        servers: str,
        topics: Sequence[str],
        transactional_id: str,
        seed: int,
        pause_s: float = 0.03,
        keys: int = KEYS,
    ) -> None:
        self.transactional = TransactionalProducer(servers, topics, "app", transactional_id, seed, pause_s, keys)
        self.plain = PlainProducer(servers, topics, "clicks", seed, pause_s, keys)

    def start(self) -> None:
        self.transactional.start()
        self.plain.start()

    def stop(self) -> tuple[tuple[ForeignFact, ...], tuple[PlainFact, ...]]:
        """Wait for what is under way; what they were told. Safe to call twice."""
        self.transactional.ask_to_stop()
        plain = self.plain.stop()
        return self.transactional.stop(), plain

    def wait_for(self, transactions: int, acked: int, within_s: float = PATIENCE_S) -> None:
        """Until so many transactions have ended, and so many plain records were acknowledged.

        :param within_s: the caller's patience. The clients' own may be shorter, where a test wants it so.
        :raises AssertionError: not within that.
        """
        until = time.monotonic() + within_s
        while self.transactional.ended < transactions or self.plain.acked < acked:
            done = f"{self.transactional.ended} transactions, {self.plain.acked} records"
            assert time.monotonic() < until, f"no more than {done}; {self.events[-5:]}"
            time.sleep(0.01)

    @property
    def events(self) -> list[tuple[float, str]]:
        """(monotonic seconds, text): what went wrong for them, for a timeline."""
        return sorted(self.transactional.events + self.plain.events)


class _Party:
    """A thread with a producer of its own, and bounded patience."""

    def __init__(self, name: str, seed: int, pause_s: float) -> None:
        self.name = name
        self.events: list[tuple[float, str]] = []
        self._rnd = random.Random(f"{name}-{seed}")
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def _join(self) -> None:
        self._stopping.set()
        # a commit, an abort and a new beginning may each take all patience
        self._thread.join(4 * PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} does not end; {self.events[-5:]}"
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error

    def _run(self) -> None:
        raise NotImplementedError

    def _rest(self) -> None:
        self._stopping.wait(self._rnd.random() * self._pause_s)

    def _tell(self, text: str) -> None:
        self.events.append((time.monotonic(), f"{self.name}: {text}"))


class TransactionalProducer(_Party):
    """One transaction after the other, 5 to 50 records each; every fifth or so it aborts itself."""

    def __init__(
        self,
        servers: str,
        topics: Sequence[str],
        name: str,
        transactional_id: str,
        seed: int,
        pause_s: float = 0.03,
        keys: int = KEYS,
    ) -> None:
        super().__init__(name, seed, pause_s)
        self._keys = keys
        self._servers = servers
        self._topics = list(topics)
        self._id = transactional_id
        self._producer: Producer | None = None
        self._facts: list[ForeignFact] = []

    @property
    def ended(self) -> int:
        """Transactions so far."""
        return len(self._facts)

    def stop(self) -> tuple[ForeignFact, ...]:
        """Wait for the transaction under way; all transactions that were begun."""
        self._join()
        return tuple(self._facts)

    def _run(self) -> None:
        unit = 0
        while not self._stopping.is_set():
            if self._producer is None and not self._begin_anew():
                continue
            unit += 1
            topic, records = self._rnd.choice(self._topics), self._rnd.randint(5, 50)
            wanted = Fate.ABORTED if self._rnd.random() < 0.2 else Fate.COMMITTED
            fate = self._transaction(unit, topic, records, wanted)
            self._facts.append(ForeignFact(self.name, unit, topic, records, fate, self._id))
            self._rest()
        if self._producer is None:  # nothing of its own stays open
            self._begin_anew()

    def _begin_anew(self) -> bool:
        """A new client with the same id: that ends what the one before may have left open."""
        try:
            self._producer = transactional(self._servers, self._id)
            return True
        except KafkaException as error:
            self._tell(f"cannot begin: {error}")
            return False

    def _transaction(self, unit: int, topic: str, records: int, wanted: Fate) -> Fate:
        assert self._producer is not None
        committing = False
        try:
            self._producer.begin_transaction()
            write(self._producer, self.name, unit, topic, records, self._rnd, self._keys)
            if wanted is Fate.COMMITTED:
                committing = True
                persist(self._producer.commit_transaction)
            else:
                persist(self._producer.abort_transaction)
            return wanted
        except (KafkaException, BufferError) as error:
            self._tell(f"transaction {unit}, to be {wanted.value}: {error}")
            return self._after(error, wanted, committing)

    def _after(self, error: Exception, wanted: Fate, committing: bool) -> Fate:
        """What becomes of a transaction that failed. Its client is given up, unless it can abort in order."""
        assert self._producer is not None
        reason = error.args[0] if isinstance(error, KafkaException) else None
        if reason is not None and reason.code() == E._FATAL:
            reason = _why_fatal(self._producer) or reason
        if reason is not None and reason.code() in TOUCHED:
            self._tell(f"was touched: {reason}")
            self._give_up()
            return wanted
        if reason is not None and reason.txn_requires_abort():
            try:
                persist(self._producer.abort_transaction)
                return Fate.ABORTED
            except KafkaException as again:
                self._tell(f"cannot abort: {again}")
        self._give_up()
        # without an EndTxn that says so nothing is committed: who comes next under this id aborts it
        return Fate.UNKNOWN if committing else Fate.ABORTED

    def _give_up(self) -> None:
        """librdkafka 2.16.0 corrupts memory (seen under ``MALLOC_CHECK_=3``) where a fenced client is destroyed with
        records that are not reported yet: they are purged and reported first."""
        assert self._producer is not None
        producer, self._producer = self._producer, None
        producer.purge()
        for _ in range(10):
            with contextlib.suppress(KafkaException, SystemError):
                if producer.flush(0.1) == 0:
                    break


class HeldTransaction:
    """A transaction of another application that is open over a whole run, and is committed at its end.

    Rule: only-our-ids.

    Readers get nothing of the topic behind it in the meantime.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        transactional_id: str,
        name: str = "holder",
        records: int = 12,
        keys: int = KEYS,
    ) -> None:
        self.events: list[tuple[float, str]] = []
        #: what must be true of it
        self.fact = ForeignFact(name, 1, topic, records, Fate.COMMITTED, transactional_id)
        self._producer = transactional(servers, transactional_id)
        self._producer.begin_transaction()
        write(self._producer, name, 1, topic, records, random.Random(name), keys)
        left = self._producer.flush(PATIENCE_S)
        assert left == 0, f"{left} records of the transaction to be held were not written"

    def commit(self) -> ForeignFact:
        """Its fate is to be committed, whoever refuses it; only where nobody answers it is unknown."""
        try:
            persist(self._producer.commit_transaction)
        except KafkaException as error:
            self.events.append((time.monotonic(), f"{self.fact.producer}: {error}"))
            if error.args[0].retriable():
                self.fact = replace(self.fact, fate=Fate.UNKNOWN)
            elif error.args[0].code() in TOUCHED | {E._FATAL}:
                self.fact = replace(self.fact, was_ended=True)
        return self.fact


def totals(foreign: Iterable[ForeignFact], plain: Iterable[PlainFact]) -> tuple[int, int]:
    """Transactions that were committed, and plain records that were acknowledged, as their clients were told."""
    committed = sum(fact.fate is Fate.COMMITTED for fact in foreign)
    return committed, sum(len(fact.acked) for fact in plain)


class PlainProducer(_Party):
    """Idempotent, without transactions: each record that was acknowledged is there, once.

    A client that failed for good is followed by another one, which counts anew under a name of its own.
    """

    def __init__(
        self, servers: str, topics: Sequence[str], name: str, seed: int, pause_s: float = 0.03, keys: int = KEYS
    ) -> None:
        super().__init__(name, seed, pause_s)
        self._keys = keys
        self._servers = servers
        self._topics = list(topics)
        self._acked: dict[tuple[str, str], list[int]] = {}

    @property
    def acked(self) -> int:
        """Records so far."""
        return sum(map(len, list(self._acked.values())))

    def stop(self) -> tuple[PlainFact, ...]:
        """Wait until all is written; the numbers that were acknowledged, by client and topic."""
        self._join()
        return tuple(PlainFact(who, topic, tuple(sorted(n))) for (who, topic), n in self._acked.items())

    def _run(self) -> None:
        client = 0
        while not self._stopping.is_set():
            client += 1
            names = {topic: f"{self.name}-{client}-{topic}" for topic in self._topics}
            self._acked |= {(name, topic): [] for topic, name in names.items()}
            try:
                self._client(names)
            except (KafkaException, BufferError) as error:
                self._tell(f"gives up its client: {error}")

    def _client(self, names: Mapping[str, str]) -> None:
        producer = Producer({**_QUIET, "bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 2})
        counts = dict.fromkeys(names, 0)
        try:
            while not self._stopping.is_set():
                topic = self._rnd.choice(self._topics)
                for _ in range(self._rnd.randint(1, 20)):
                    number, key = counts[topic], f"k{self._rnd.randrange(self._keys)}"
                    counts[topic] += 1
                    value = Value(PLAIN, names[topic], 0, key, number).encode(VALUE_BYTES)
                    note = self._noting(self._acked[names[topic], topic], number)
                    producer.produce(topic, value, key, on_delivery=note)
                producer.poll(0)
                self._rest()
        finally:
            producer.flush(PATIENCE_S)
            # what is not delivered by now is nobody's promise, and must not come later
            producer.purge()
            producer.flush(_CALL_S)

    def _noting(self, acked: list[int], number: int) -> Callable[[object, object], None]:
        def note(error: object, message: object) -> None:
            if error is None:
                acked.append(number)
            else:
                self._tell(f"record {number}: {error}")

        return note


def transactional(servers: str, transactional_id: str) -> Producer:
    """A client with this id, initialised: whatever was open under it is ended.

    :raises KafkaException: not within :data:`PATIENCE_S`.
    """
    producer = Producer(
        {
            **_QUIET,
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 2,
        }
    )
    persist(producer.init_transactions)
    return producer


def write(
    producer: Producer, name: str, unit: int, topic: str, records: int, rnd: random.Random, keys: int = KEYS
) -> None:
    for number in range(records):
        key = f"k{rnd.randrange(keys)}"
        producer.produce(topic, Value(FOREIGN, name, unit, key, number).encode(VALUE_BYTES), key)


def _why_fatal(producer: Producer) -> E | None:
    """A client that has failed for good does nothing any more, but its transactional calls say why."""
    try:
        producer.abort_transaction(_CALL_S)
    except KafkaException as error:
        found: E = error.args[0]
        return found
    return None


def persist(call: Callable[[float], None]) -> None:
    """Ask again while the client says that it may be asked again: the same question, with the same outcome.

    :raises KafkaException: it may not, or not within :data:`PATIENCE_S`.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            call(_CALL_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until:
                raise
