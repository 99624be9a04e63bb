"""Reads what the page shows: from the ledger, and apart from it, for they may be slow, from the brokers.

Connections are looked up in the api-server as Airflow does it there.
"""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError, NotFinishedError, OtherLedgerError
from airflow_kafka_eos.hooks import KafkaEosHook, ledger_url
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.location import default_url
from airflow_kafka_eos.ledger.queries import Owned
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow
from airflow_kafka_eos.load import UNENDED, LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import namespace_prefix
from airflow_kafka_eos.operators.base import run_of
from airflow_kafka_eos.plugin import dags, views
from airflow_kafka_eos.plugin.dags import Access, Place, is_template
from airflow_kafka_eos.protocol.guards.id_caps import ids_report
from airflow_kafka_eos.protocol.guards.ownership import hidden_by_acls, holders_of, is_ours
from airflow_kafka_eos.protocol.hanging import HangingTransaction, find
from airflow_kafka_eos.protocol.metrics import lag_by_partition
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction, TopicPartition, TransactionDescription

#: Seconds that one request to a broker, with its retries, may take.
REQUEST_S = 8.0
#: Seconds behind which no further cluster is asked.
_LOOK_S = 15.0
#: Partitions in which one look searches for hanging transactions.
_MOST_PARTITIONS = 500
#: Loads of which is read at once whose they are: enough for who may see all, then for who may see a few.
_FIRST_LOOK, _NEXT_LOOK = 1_000, 20_000
#: Ways to read a load's text.
_CUTS = 100


@contextmanager
def open_ledger(conn_id: str | None) -> Iterator[Ledger]:
    """The ledger alone: it is shown also while no broker answers.

    :param conn_id: None for the embedded SQLite file.
    :raises ConfigurationError: the connection is a template, Airflow has no such one, or there is no embedded ledger
        here.
    :raises LedgerUnavailableError: the ledger's database does not answer, or is not upgraded.
    """
    with _known_connections(), Ledger.open_existing(_url(conn_id)) as ledger:
        yield ledger


@contextmanager
def open_session(place: Place, namespace: str) -> Iterator[Session]:
    """Ledger and cluster of a place.

    :raises ConfigurationError: its connections are not known, or lack what they need.
    :raises KafkaEosError: see :func:`airflow_kafka_eos.protocol.session.connect`.
    """
    if place.kafka_conn_id is None:
        raise _unknown_cluster()
    with _known_connections():
        _url(place.ledger_conn_id)  # refuses an embedded ledger that is not there, and says so in the page's words
        resolved = KafkaEosHook(place.kafka_conn_id, place.ledger_conn_id).resolve()
    with resolved.session(namespace, timeout_s=REQUEST_S, existing=True) as session:
        yield session


def _unknown_cluster(command: str = "airflow-kafka-eos …", load: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        "the Kafka connection of this load is not known: its DAG was deleted, or kafka_conn_id is a template",
        remedy=f"Use the command line, with the connection that the load was written by: `{command} --kafka-conn-id …`",
        load=load,
    )


@contextmanager
def _known_connections() -> Iterator[None]:
    try:
        yield
    except AirflowNotFoundException as e:
        raise ConfigurationError(
            str(e), remedy="Create it where the api-server finds it: Airflow's connections, or a secrets backend"
        ) from e


def _url(conn_id: str | None) -> str:
    if conn_id is not None and is_template(conn_id):
        raise ConfigurationError(
            f"the ledger of these loads is not known: ledger_conn_id is the template {conn_id!r}",
            remedy="Look for them among all loads, where [kafka_eos] names their ledger, or use the command line, with "
            "the connection by name: airflow-kafka-eos … --ledger-conn-id …",
        )
    if conn_id is not None:
        return ledger_url(BaseHook.get_connection(conn_id))
    url = default_url()
    path = Path(url.removeprefix("sqlite:///"))
    if not path.is_file():
        raise ConfigurationError(
            f"no load has run yet, or loads use another ledger: there is no embedded ledger {path} on this api-server",
            remedy="Set ledger_conn_id of the loads, and of [kafka_eos] in Airflow's configuration, to a database "
            "that workers and api-server share",
        )
    return url


@dataclass(frozen=True)
class Selection:
    """Which loads: those of one run, or all that the configured ledger knows."""

    dag_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True)
class Found:
    """A load that the user may see, its newest attempt, the ledger that has it, and what to know of it."""

    row: LoadRow
    newest: AttemptRow | None
    ledger_conn_id: str | None
    note: str = ""


@dataclass(frozen=True)
class FoundLoads:
    """``more``: there are others, which the user may see too."""

    loads: list[Found]
    more: bool = False


def find_loads(access: Access, selection: Selection, only: LoadIdentity | None = None) -> FoundLoads:
    """The loads of a selection that the user may see: of a run all; else those that changed last, and all that are not
    through, as far as there is room.

    :param only: look for this one alone.
    :raises OtherLedgerError: none that the api-server opens knows a load that the run has begun.
    :raises KafkaEosError: a ledger cannot be opened.
    """
    if selection.dag_id is None or selection.run_id is None:
        conn_id = dags.configured().ledger_conn_id
        with open_ledger(conn_id) as ledger:
            if only is not None:
                return FoundLoads(_seen(access, ledger, _one(ledger, only), conn_id, None))
            chosen, more = _choose(access, ledger)
            return FoundLoads(_seen(access, ledger, ledger.overview_of(chosen), conn_id, None), more)
    tasks = dags.load_tasks(selection.dag_id, selection.run_id)
    prefix = run_of(selection.dag_id, selection.run_id)
    begun = dags.begun_loads(selection.dag_id, selection.run_id, tasks)
    named = [load for text in begun for load in loads_named(text)]
    found: list[Found] = []
    known: set[str] = set()
    for conn_id in sorted({t.place.ledger_conn_id for t in tasks}, key=str):
        with open_ledger(conn_id) as ledger:
            if only is not None:
                every = _one(ledger, only)
            else:
                every = ledger.overview_of([*ledger.begun_by(prefix), *ledger.ids_of(named)])
            known |= {str(row.load) for row, _ in every}
            opened = repr(ledger)
            mine = [(row, newest) for row, newest in every if _is_of_run(row, newest, prefix, begun)]
            found += _seen(access, ledger, mine, conn_id, prefix)
    unknown = sorted(begun - known)
    if only is None and tasks and unknown:
        # an empty ledger would show a run that is at work as one without loads
        raise OtherLedgerError(f"the ledger {opened}, here on the api-server, does not know this load", load=unknown[0])
    return FoundLoads(found)


def _choose(access: Access, ledger: Ledger) -> tuple[set[int], bool]:
    """Row ids of the loads for a list of all that the user may see, and whether there are more.

    What is not through comes first: nothing that a person has to see is behind what changed since.
    """
    chosen: set[int] = set()
    for states in (UNENDED, None):
        for one in _owned(access, ledger, states):
            if one.id not in chosen and len(chosen) == views.MOST_LOADS:
                return chosen, True
            chosen.add(one.id)
    return chosen, False


def _owned(access: Access, ledger: Ledger, states: Collection[LoadState] | None = None) -> Iterator[Owned]:
    """Those that the user may see, what changed last first; read as far as somebody asks."""
    behind, at_most = None, _FIRST_LOOK
    while some := ledger.owned(behind=behind, at_most=at_most, states=states):
        yield from (one for one in some if access.may_see_owned(one.owner, one.submitted_by))
        if len(some) < at_most:
            return
        behind, at_most = some[-1], _NEXT_LOOK


def loads_named(text: str) -> list[LoadIdentity]:
    """What a load's text may mean: names and keys may have the sign between them in them."""
    parts = text.split("/")
    cuts = itertools.combinations(range(1, len(parts)), 2)
    named = (("/".join(parts[:a]), "/".join(parts[a:b]), "/".join(parts[b:])) for a, b in itertools.islice(cuts, _CUTS))
    return [LoadIdentity(*names) for names in named if all(names)]


def _seen(
    access: Access,
    ledger: Ledger,
    rows: Iterable[tuple[LoadRow, AttemptRow | None]],
    conn_id: str | None,
    run: str | None,
) -> list[Found]:
    """Those that the user may see, with what to know of each."""
    seen = [(row, newest) for row, newest in rows if access.may_see(newest)]
    asked = {newest.arguments_sha256 for _, newest in seen if newest is not None and newest.arguments_sha256}
    committed = ledger.same_arguments(asked) if asked else {}
    found = []
    for row, newest in seen:
        others = [] if newest is None else committed.get(newest.arguments_sha256 or "", [])
        same = [
            a
            for a in others
            if (a.load.namespace, a.load.name) == (row.load.namespace, row.load.name) and access.may_see(a)
        ]
        found.append(Found(row, newest, conn_id, views.note(newest, same, run)))
    return found


def find_load(access: Access, selection: Selection, load: LoadIdentity) -> Found | None:
    """One of them; None: there is none that the user may see."""
    return next(iter(find_loads(access, selection, load).loads), None)


def _one(ledger: Ledger, load: LoadIdentity) -> list[tuple[LoadRow, AttemptRow | None]]:
    row = ledger.load(load)
    return [] if row is None else [(row, ledger.attempt(load, row.newest_attempt))]


def runs_of(found: Iterable[Found]) -> views.Runs:
    """What Airflow has of the runs that the unfinished ones of these loads are of."""
    return dags.runs_seen(
        {f.newest.responsible for f in found if f.newest is not None and views.is_unfinished(f.row)}
    )


def show(
    access: Access, found: Found, paused: Container[str] = (), runs: views.Runs | None = None
) -> dict[str, Any]:
    """All that the ledger knows of one load, as far as the user may see its attempts.

    :param paused: DAGs.
    :param runs: the load's.
    """
    load = found.row.load
    with open_ledger(found.ledger_conn_id) as ledger:
        row = ledger.load(load) or found.row
        attempts = ledger.attempts(load)
        visible = [a for a in attempts if access.may_see(a)]
        transactions = [(a, t) for a in visible for t in ledger.transactions(load, a.number)]
        numbers = {a.number for a in visible}
        repairs = [r for r in ledger.repairs(load) if r.attempt in numbers]
        ranges = ledger.ranges(load)
        cursor = ledger.cursor(load.namespace, load.name) if ranges else None
    return views.load_in_full(
        row,
        visible,
        transactions,
        repairs,
        hidden=len(attempts) - len(visible),
        may_act=access.may_act(attempts),
        paused=paused,
        runs=runs,
        note=found.note,
        ranges=ranges,
        cursor=cursor,
    )


def look(access: Access, found: list[Found], selection: Selection) -> list[dict[str, Any]]:
    """What the brokers show of these loads, cluster by cluster; one that does not answer says so in its ``problem``.

    Of all loads: also in namespaces whose loads are not among them.
    """
    looks = []
    until = time.monotonic() + _LOOK_S
    places = _places(found, selection)
    everywhere: set[str] = set()
    if selection.run_id is None:
        conn_id = dags.configured().ledger_conn_id
        with open_ledger(conn_id) as ledger:
            everywhere = {one.namespace for one in _owned(access, ledger)}
        if everywhere:
            places.setdefault(dags.configured(), [])
    for place, loads in places.items():
        seen: dict[str, Any] = {"kafka_conn_id": place.kafka_conn_id, "problem": None}
        try:
            if time.monotonic() > until:
                raise NotFinishedError("other connections took too long", remedy="Look at the tabs of its runs")
            namespaces = everywhere if place == dags.configured() else ()
            seen |= _look_at(access, place, loads, namespaces, everything=selection.run_id is None)
        except KafkaEosError as e:
            seen["problem"] = str(e)
        looks.append(seen)
    return looks


def ids(access: Access) -> list[dict[str, Any]]:
    """How many ids brokers keep, by load name; only names whose loads the user may see all."""
    place = dags.configured()
    with open_ledger(place.ledger_conn_id) as ledger:
        every = ledger.owned()
    names = {(one.namespace, one.name) for one in every}
    names -= {(one.namespace, one.name) for one in every if not access.may_see_owned(one.owner, one.submitted_by)}
    reports = []
    for namespace in sorted({namespace for namespace, _ in names}):
        with open_session(place, namespace) as session:
            report = ids_report(session)
        shown = [n for n in report.names if (namespace, n.load_name) in names]
        reports.append(views.ids(report, shown))
    return reports


def _is_of_run(row: LoadRow, newest: AttemptRow | None, prefix: str, begun: set[str]) -> bool:
    owners = () if newest is None else (newest.owner, newest.submitted_by or "")
    return str(row.load) in begun or any(owner.startswith(prefix) for owner in owners)


def _places(found: Iterable[Found], selection: Selection) -> dict[Place, list[Found]]:
    """Loads by the cluster that their DAGs name. Unknown clusters are looked at too: they answer with their problem."""
    every = selection.run_id is None
    by_place: dict[Place, list[Found]] = {}
    for f in found:
        if every and f.row.state.is_ended:
            # whatever of them is open shows in the listing of the configured cluster
            by_place.setdefault(replace(dags.configured(), ledger_conn_id=f.ledger_conn_id), []).append(f)
            continue
        place = None if f.newest is None else dags.place_of(f.newest.responsible)
        conn_id = None if place is None else place.kafka_conn_id
        by_place.setdefault(Place(conn_id, f.ledger_conn_id), []).append(f)
    return by_place


def _look_at(
    access: Access, place: Place, found: list[Found], namespaces: Collection[str] = (), *, everything: bool
) -> dict[str, Any]:
    """:param namespaces: to look at besides those of the loads.
    :param everything: of these namespaces, whatever load it is of; else of these loads only.
    """
    wanted = {f.row.load for f in found}
    now_ms = int(time.time() * 1000)
    paused = dags.paused_dags()
    shown: list[dict[str, Any]] = []
    lag: dict[TopicPartition, int] = {}
    hang: list[HangingTransaction] = []
    hidden: list[str] = []
    first, *others = sorted({load.namespace for load in wanted} | set(namespaces))
    with open_session(place, first) as session:
        for one in (session, *(_of_namespace(session, namespace) for namespace in others)):
            prefix = namespace_prefix(one.namespace, one.ledger.ledger_id)
            names = [name for name in one.coordinator.list_open(prefix) if is_ours(one, name)]
            described = [d for d in one.coordinator.describe(names).values() if d.is_open]
            holders = holders_of(one, [PreparedTransaction(d.transactional_id, d.state) for d in described])
            pairs = [(d, holders.get(PreparedTransaction(d.transactional_id, d.state))) for d in described]
            mine = [
                (d, attempt)
                for d, attempt in pairs
                if (everything or (attempt is not None and attempt.load in wanted)) and access.may_see(attempt)
            ]
            decided = _decided(one.ledger, [d for d, _ in mine])
            runs = dags.runs_seen({a.responsible for _, a in mine if a is not None and a.is_undecided})
            # of many transactions there are a few loads
            rows = {load: one.ledger.load(load) for load in {a.load for _, a in mine if a is not None}}
            for d, attempt in mine:
                is_decided = PreparedTransaction(d.transactional_id, d.state) in decided
                row = None if attempt is None else rows[attempt.load]
                shown.append(
                    views.open_transaction(
                        d, attempt, row, is_decided=is_decided, now_ms=now_ms, paused=paused, runs=runs
                    )
                )
            lag |= lag_by_partition(one, [d for d, _ in mine])
            partitions = _written(one.ledger, found, one.namespace) | {tp for d, _ in mine for tp in d.partitions}
            hang += visible(access, find(one, sorted(partitions)[:_MOST_PARTITIONS]))
            hidden += [str(why) for why in (hidden_by_acls(one),) if why is not None]
        servers = session.partitions.wire.settings.bootstrap_servers
    return {
        "transactions": sorted(shown, key=lambda t: (-(t["running_ms"] or 0), t["transactional_id"])),
        "lag": views.lag(lag),
        "hanging": [views.hanging(h, servers) for h in hang],
        "hidden": hidden,
    }


def visible(
    access: Access, hanging: Iterable[HangingTransaction]
) -> list[HangingTransaction]:
    """Those that the user may see: others' name no attempt, so they are for who may see all DAGs."""
    return [h for h in hanging if access.may_see(h.attempt)]


def _decided(ledger: Ledger, described: Iterable[TransactionDescription]) -> set[PreparedTransaction]:
    """Of these, what a decision names and no repair has replaced."""
    return {
        row.transaction
        for attempt, row in ledger.prepared_as({d.state for d in described})
        if attempt.verdict is Verdict.COMMIT and row.outcome is not Outcome.SUPERSEDED
    }


def _written(ledger: Ledger, found: Iterable[Found], namespace: str) -> set[TopicPartition]:
    """Partitions that the unfinished loads of a namespace, or the few of one run, have written to."""
    loads = [f for f in found if f.row.load.namespace == namespace and f.newest is not None]
    if len(loads) > 20:
        loads = [f for f in loads if not f.row.state.is_ended]
    return {
        w.topic_partition
        for f in loads
        if f.newest is not None
        for t in ledger.transactions(f.row.load, f.newest.number)
        for w in t.writes
    }


def _of_namespace(session: Session, namespace: str) -> Session:
    coordinator = Coordinator(session.partitions.wire, namespace=namespace, ledger_id=session.ledger.ledger_id)
    return replace(session, namespace=namespace, coordinator=coordinator)


def place_to_act(found: Found, action: views.ActionName) -> Place:
    """Where to do something for a load: what its own DAG says, never a guess, for on another cluster it looks ended.

    :raises ConfigurationError: it is not known; names the command that does the same.
    """
    place = None if found.newest is None else dags.place_of(found.newest.responsible)
    if place is None or place.kafka_conn_id is None:
        ledger = "" if found.ledger_conn_id is None else f" --conn-id {shlex.quote(found.ledger_conn_id)}"
        raise _unknown_cluster(action.command(found.row.load) + ledger, str(found.row.load))
    return Place(place.kafka_conn_id, found.ledger_conn_id)
