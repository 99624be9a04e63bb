"""A ledger that is put back to what it was; and the person behind it, who does what the pages print.

The person looks at brokers, topics and checkpoints, and at nothing that the ledger has lost.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.micro_batch import batch_of
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.faults.observing import ends_of, read_librdkafka
from tests.faults.worlds.checkpoints import Query
from tests.faults.worlds.drivers import STEP_S, UP_S
from tests.faults.worlds.forked_engine import command
from tests.faults.worlds.stream_judge import BEAT, Beat, standing
from tests.faults.worlds.stream_plan import Kind, Strike
from tests.kafka_tools import Shell
from tests.spark.conftest import REPOSITORY

if TYPE_CHECKING:
    from tests.faults.worlds.stream_world import StreamWorld

_REFUSED = "InDoubtError"
#: a person sees so many drivers refused: what the first one leaves must not let the next one through
REFUSALS = 2
END_S = 30.0
_UNFINISHED = ("COMMITTING", "REPAIRING", "IN_DOUBT")
_TERMINATE = "kafka-transactions.sh --bootstrap-server … forceTerminateTransaction --transactionalId ID"


def _steps(page: str, title: str) -> str:
    """A section of a page, as its source has it."""
    text = Path(REPOSITORY, "docs", page).read_text(encoding="utf-8")
    return re.split(r"\n##+ ", text.split(f"# {title}\n")[1])[0]


class LedgerRestored:
    """The strike, in one world.

    :ivar forgotten: by query: batches that the ledger has lost, and the topics have, with their rows.
    """

    def __init__(self, world: StreamWorld) -> None:
        self._world = world
        self.forgotten: dict[str, dict[int, int]] = defaultdict(dict)
        self._number = 0
        #: monotonic seconds, from a ledger's being put back to the end of what a person has to do
        self._spans: list[tuple[float, float]] = []
        self._torn = self._refusals = 0

    def wait_bound(self) -> bool:
        """Of a query that the saved ledger has never seen nobody can say anything (docs/streams.md)."""
        until = time.monotonic() + UP_S
        while None in (decided := self._world.decided()) or not decided:
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    def strike(self, strike: Strike) -> bool:
        """No driver is started by itself meanwhile; whether the ledger was put back."""
        world = self._world
        world.wait_dead()
        world.database.save()
        if not world.goes_on():
            return False
        self._number += 1
        if not strike.then:
            time.sleep(strike.seconds)
        elif not world.comes_by(f"then-{self._number}", strike.then, 1, Kind.DRIVER_KILL, STEP_S):
            world.timeline.log("it dies at a moment", meant=strike.then)
        if world.supervisor.current is not None:
            world.supervisor.current.kill()
        world.wait_dead()
        at = time.monotonic()
        with world.session() as session:
            there = {query.name: _committed(session, query) for query in world.queries}
        world.database.put_back()
        decided = dict(zip(there, world.decided(), strict=True))
        world.timeline.log("the ledger is put back", brokers_have=there, it_has=decided)
        world.grow_on()
        lacking = [query for query in world.queries if there[query.name] > (decided[query.name] or 0)]
        if self._is_refused(lacking):
            self._settle(there)
        self._spans.append((at, time.monotonic()))
        return True

    def figures(self, beats: Iterable[Beat]) -> dict[str, float]:
        if not self._spans:
            return {}
        begin, end = min(at for at, _ in self._spans), max(end for _, end in self._spans)
        longest, _ = standing([beat for beat in beats if beat.seen >= begin and beat.written <= end], [])
        return {
            "ledgers that were put back": len(self._spans),
            "drivers refused behind it": self._refusals,
            "batches that it had forgotten": sum(map(len, self.forgotten.values())),
            "of them torn": self._torn,
            "from its restore to what a person has said, s": round(max(end - at for at, end in self._spans), 1),
            "readers stood still around it, s": round(longest, 2),
        }

    def _is_refused(self, lacking: list[Query]) -> bool:
        """What becomes of the next drivers.

        Where brokers have committed nothing that the ledger lacks, they may go on, and do it well.
        """
        world, supervisor = self._world, self._world.supervisor
        before, decided = self._written(), world.decided()
        first = len(supervisor.drivers)
        until = time.monotonic() + UP_S
        with supervisor.released():
            while time.monotonic() < until:
                ended = [driver for driver in supervisor.drivers[first:] if not driver.lives]
                refused = sum(_REFUSED in driver.errors() for driver in ended)
                if refused >= REFUSALS:
                    break
                if not refused and not lacking and world.decided() != decided:
                    return False
                time.sleep(0.2)
        if supervisor.current is not None:
            supervisor.current.kill()
        world.wait_dead()
        self._refusals += refused
        after = self._written()
        for query in lacking:
            if after[query.topic] != before[query.topic]:
                text = f"query {query.name}: {after[query.topic] - before[query.topic]} rows are written"
                world.outcome.wrong("restored_unnoticed", text)
        if lacking and not refused:
            text = f"no driver is refused, and brokers have more of {[query.name for query in lacking]}"
            world.outcome.wrong("restored_unnoticed", text)
        return bool(lacking or refused)

    def _written(self) -> Counter[str]:
        """How many rows each topic has, whatever became of their transactions."""
        level = "read_uncommitted"
        ends = ends_of(self._world.kafka.bootstrap_servers, self._world.topics, level)
        records = read_librdkafka(self._world.kafka.bootstrap_servers, ends, level)
        return Counter(record.topic for record in records if not record.said.startswith(BEAT.encode()))

    def _settle(self, there: Mapping[str, int]) -> None:
        """What a person does; what he has found is held against what the lost ledger knew."""
        world = self._world
        person = Person(world, self._number)
        person.finish_decided()
        person.end_open()
        knew = dict(zip(there, world.decided(), strict=True))
        person.renew()
        for query in world.queries:
            last, missing = person.last_batch(query)
            rows = {number: len(query.rows(number, person.source)) for number in query.planned() if number <= last}
            if missing:
                self._torn += 1
                person.write(query, missing)
            person.say(query, last)
            due = max(there[query.name], knew[query.name] or 0)
            if last != due:
                text = f"query {query.name}: a person has found batch {last} as the last one, and it was {due}"
                world.outcome.wrong("reported_wrong", text)
            lost = {number: count for number, count in rows.items() if number > (knew[query.name] or 0)}
            self.forgotten[query.name] |= lost
            world.timeline.log("a person says", query=query.name, last=last, knew=knew[query.name], by_hand=missing)


def _committed(session: Session, query: Query) -> int:
    """The last batch of which brokers have committed something, by the ledger that is about to be lost."""
    stream = session.ledger.stream(session.namespace, query.name)
    assert stream is not None and stream.decided is not None
    for row in session.ledger.loads(session.namespace, query.name):
        of = batch_of(row.load)
        if of != (stream.query_id, stream.decided) or row.state is LoadState.COMMITTED:
            continue
        for attempt in session.ledger.attempts(row.load):
            if attempt.verdict is Verdict.COMMIT:
                ids = [t.transaction.transactional_id for t in session.ledger.transactions(row.load, attempt.number)]
                seen = session.coordinator.describe(ids).values()
                return stream.decided - (not any(one.coordinator_state.is_committed for one in seen))
    return stream.decided


class Person:
    """Does what docs/howto-on-call.md and docs/streams.md say, by the commands that they print."""

    def __init__(self, world: StreamWorld, number: int) -> None:
        self._world = world
        self._folder = world.folder / f"person-{number}"
        self._folder.mkdir()
        self._asked = 0
        self._pages = _steps("howto-on-call.md", "The ledger was restored")
        self._pages += _steps("streams.md", "Behind a ledger that was restored")
        self._servers = world.kafka.bootstrap_servers
        self._environ = {
            LEDGER_VARIABLE: world.ledger_url,
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(
                {"conn_type": "kafka", "extra": {"bootstrap.servers": self._servers}}
            ),
            "AIRFLOW__KAFKA_EOS__NAMESPACE": world.namespace,
            "AIRFLOW_HOME": str(self._folder),
        }
        self.source = self._read({world.source_topic: world.plan.partitions}) if world.plan.source == "kafka" else ()

    def _run(self, printed: str, *more: str, **put_in: str) -> str:
        """A command of the pages, or that a page means by "the same with"; what it answers."""
        assert f"`{printed}`" in self._pages or f"\n    {printed}\n" in self._pages, f"no page has: {printed}"
        words = [put_in.get(word, word) for word in printed.split()][1:]
        self._asked += 1
        out = self._folder / f"{self._asked}"
        code = command(self._world.engine, [*words, *more], self._environ, out)
        said = [out.with_suffix(f".{name}").read_text(encoding="utf-8") for name in ("out", "err")]
        self._world.timeline.log("a person runs", command=words, more=more, code=code, said=said[1][-500:])
        assert code in (0, 1), f"{words} ends with {code}: {said}"
        return said[0]

    def _list(self, printed: str, **put_in: str) -> Any:
        return json.loads(self._run(printed, "--output", "json", **put_in))

    def finish_decided(self) -> None:
        printed = "airflow-kafka-eos loads list --state COMMITTING"
        for row in [row for state in _UNFINISHED for row in self._list(printed, COMMITTING=state)]:
            self._run("airflow-kafka-eos loads recover NAME KEY", NAME=row["name"], KEY=row["key"])

    def end_open(self) -> None:
        until = time.monotonic() + END_S
        while names := self._open():
            assert time.monotonic() < until, f"what is open does not end: {names}"
            if not (self._folder / "bin").exists():
                shell = Shell.at(self._folder)
            assert f"\n       {_TERMINATE}\n" in self._pages
            for name in names:
                ran = shell(_TERMINATE.replace("…", self._servers).replace("ID", name))
                self._world.timeline.log("a person ends", name=name, code=ran.code, said=ran.err[-300:])

    def _open(self) -> list[str]:
        return [name for one in self._list("airflow-kafka-eos ledger compare") for name in one["open"]]

    def renew(self) -> None:
        self._run("airflow-kafka-eos ledger new-id", "--yes")
        for row in self._list("airflow-kafka-eos ids report")["names"]:
            for slot in row["slots_in_doubt"]:
                self._run("airflow-kafka-eos ids settle NAME SLOT", "--yes", NAME=row["name"], SLOT=str(slot))

    def last_batch(self, query: Query) -> tuple[int, list[str]]:
        """The last one that the topic has something of, -1 for none; and which of its rows are not there."""
        there = {record.said.decode() for record in self._read({query.topic: self._world.plan.partitions})}
        for number in reversed(query.planned()):
            rows = query.rows(number, self.source)
            if not there.isdisjoint(rows):
                return number, [row for row in rows if row not in there]
        return -1, []

    def _read(self, topics: dict[str, int]) -> tuple[Any, ...]:
        return read_librdkafka(self._servers, ends_of(self._servers, topics))

    def write(self, query: Query, rows: list[str]) -> None:
        """By hand: what a batch that is there in part lacks."""
        producer = Producer({"bootstrap.servers": self._servers, "log_level": 0, "acks": "all"})
        for row in rows:
            producer.produce(query.topic, row, key=row)
        assert not producer.flush(END_S), "rows by hand are not written"

    def say(self, query: Query, last: int) -> None:
        names = [row["name"] for row in self._list("airflow-kafka-eos streams list")]
        assert query.name in names, f"{query.name} is not among {names}"
        self._run("airflow-kafka-eos streams set NAME --decided N", "--yes", NAME=query.name, N=str(last))
