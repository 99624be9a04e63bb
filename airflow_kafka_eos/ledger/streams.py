"""Streaming queries: what a name is bound to, which run is the newest, and which batches are decided.

Rules: one-name-one-query, newest-run-begins, batches-in-turn, same-range.

Each function is one database transaction's work. Where a load's row is locked too, it is locked first.

Those of a run are told the ledger's id as the run knows it (``own_id``): a driver keeps its ledger open from batch to
batch, and the ledger may have got another one since (rule: only-our-ids). It is compared behind the lock of the query's
row, which :func:`.admin.new_id` takes before it looks at anything.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, not_, select, update

from airflow_kafka_eos.errors import (
    ConfigurationError,
    InDoubtError,
    OtherCheckpointError,
    OtherLedgerError,
    SupersededError,
)
from airflow_kafka_eos.ledger import attempts, slots
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.database import insert_first
from airflow_kafka_eos.ledger.queries import UNVERIFIED, ledger_id, lock, now
from airflow_kafka_eos.ledger.rows import AttemptRow, StreamRow, read_row
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionNaming, Verdict, name_in_command
from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun, batch_of

_C = t.streams.c
#: in place of offsets: a person has said that the topics have the batch
_SAID = ""
_KNOWN = {None: "not known", -1: "none"}
_DECIDED = tuple(state.value for state in LoadState if state.is_decided)


def bind(connection: Connection, own_id: str, batch: MicroBatch, run: StreamRun) -> StreamRow:
    """Bind the batch's query to its name, and the run as its newest; nothing happens where both are so.

    Attempts of earlier runs can be neither begun nor decided from here on.

    :raises OtherCheckpointError: the name is another query's, or the checkpoint is a copy.
    :raises SupersededError: a newer run was bound since.
    :raises OtherLedgerError: the ledger got another id since the run has opened it.
    """
    moment = now()
    row = _locked(connection, batch.namespace, batch.name)
    if row is None:
        insert_first(
            connection,
            insert(t.streams).values(
                namespace=batch.namespace, name=batch.name, query_id=None, checkpoint="", decided=-1, newest_run=0,
                bound_at=moment, updated_at=moment,
            ),
        )  # fmt: skip
        row = _must_lock(connection, batch)
    _check_id(connection, own_id, batch)
    if row.query_id is None:
        _check_one_name(connection, batch, run)
        q = t.stream_queries.c
        before = select(q.decided).where(q.stream_id == row.id, q.query_id == batch.query_id)
        known = connection.execute(before).one_or_none()
        decided = -1 if known is None else known.decided
        # under a name that was set free since, later batches of it may be decided: which, a person has to say
        free = _set_free(connection, row.id, batch.query_id)
        if decided is not None and any(one.decided is None or one.decided > decided for one in free):
            decided = None
        values = {
            "query_id": batch.query_id, "checkpoint": run.checkpoint, "decided": decided, "bound_at": moment,
            "updated_at": moment,
        }  # fmt: skip
        connection.execute(update(t.streams).where(_C.id == row.id).values(values))
        row = _must_lock(connection, batch)
    _check_bound(row, batch, run)
    r = t.stream_runs.c
    bound = select(r.number).where(r.stream_id == row.id, r.identity == run.identity)
    number = connection.execute(bound).scalar_one_or_none()
    if number is None:
        number = row.newest_run + 1
        connection.execute(
            insert(t.stream_runs).values(stream_id=row.id, number=number, identity=run.identity, bound_at=moment)
        )
        connection.execute(update(t.streams).where(_C.id == row.id).values(newest_run=number, updated_at=moment))
        row = _must_lock(connection, batch)
    _check_newest(row, number, batch)
    return _row(row)


def pass_over(connection: Connection, own_id: str, batch: MicroBatch, run: StreamRun) -> bool:
    """Whether a person has said that the batch is the last one that the topics have: then nobody writes it.

    From here on it is believed with the offsets of this run only.

    :raises SupersededError: a newer run has the query.
    :raises OtherCheckpointError: a run before has passed it over with other offsets.
    :raises OtherLedgerError: the ledger got another id since the run has opened it.
    """
    load = lock(connection, batch.load)
    stream = _must_be_newest(connection, own_id, batch, run)
    if stream.decided != batch.number or (load is not None and load.committed is not None):
        return False
    _check_turn(connection, stream, batch, run)
    b = t.stream_batches.c
    it = (b.stream_id == stream.id, b.query_id == batch.query_id, b.number == batch.number)
    values = {"offsets_sha256": batch.offsets_sha256}
    return connection.execute(update(t.stream_batches).where(*it).values(values)).rowcount == 1


def begin_batch(
    connection: Connection,
    own_id: str,
    batch: MicroBatch,
    run: StreamRun,
    *,
    naming: TransactionNaming,
    deadline_ms: int,
    cluster_id: str | None,
) -> AttemptRow:
    """Open and submit an attempt of a batch whose turn it is; the decided one of a batch that was decided before.

    Other parameters, and what else it raises, as :func:`.attempts.submit`.

    :raises SupersededError: a newer run has the query.
    :raises OtherCheckpointError: the batch, or the one before, was decided with other offsets.
    :raises InDoubtError: the ledger lacks the batch before.
    :raises OtherLedgerError: the ledger got another id since the run has opened it.
    """
    row = attempts.begin(connection, batch.load, run.opened_by or run.owner, None)
    stream = _must_be_newest(connection, own_id, batch, run)
    _check_turn(connection, stream, batch, run)
    if row.verdict is Verdict.COMMIT:
        return row
    if batch.number <= stream.decided:
        raise InDoubtError(
            f"batches up to {stream.decided} are decided, and the ledger has no decision of {batch}: its checkpoint is "
            "older than what a person has said of the topics",
            remedy="Nothing is written. Put back the checkpoint as it was last; or look which batch is the last one "
            f"that the topics have, and say so by `airflow-kafka-eos streams set {name_in_command(batch.load)} "
            "--decided N`",
            load=str(batch.load),
        )
    return attempts.submit(
        connection, batch.load, owner=run.owner, opened_by=run.opened_by or run.owner, naming=naming,
        deadline_ms=deadline_ms, cluster_id=cluster_id,
    )  # fmt: skip


def note_decided(connection: Connection, own_id: str, batch: MicroBatch, run: StreamRun) -> None:
    """Count the batch as decided, in the database transaction that decides its load.

    :raises SupersededError: a newer run has the query.
    :raises InDoubtError: its turn is not now.
    :raises OtherLedgerError: the ledger got another id since the run has opened it.
    """
    stream = _must_be_newest(connection, own_id, batch, run)
    if stream.decided != batch.number - 1:
        raise _not_its_turn(connection, stream, batch, run)
    moment = now()
    b = t.stream_batches.c
    it = (b.stream_id == stream.id, b.query_id == batch.query_id, b.number == batch.number)
    noted = {"offsets_sha256": batch.offsets_sha256, "decided_at": moment}
    # it is there where a person has said so of it, and then said that it was another one
    if not connection.execute(update(t.stream_batches).where(*it).values(noted)).rowcount:
        names = {"stream_id": stream.id, "query_id": batch.query_id, "number": batch.number}
        connection.execute(insert(t.stream_batches).values(names | noted))
    connection.execute(
        update(t.streams).where(_C.id == stream.id).values(decided=batch.number, updated_at=moment)
    )


def set_stream(
    connection: Connection,
    namespace: str,
    name: str,
    *,
    checkpoint: str | None = None,
    decided: int | None = None,
    forget_query: bool = False,
) -> StreamRow | None:
    """What a person says of a query; None where there is no such query.

    :param checkpoint: where it was moved to.
    :param decided: the last batch of it that its topics have; -1: none. Where the ledger does not have it as decided,
        it is passed over when it is asked for.
    :param forget_query: the name is free: the next run binds its query. What was decided of the old one, and that a
        person has to say, stays with its id: it is so again when that is the next one, unless it has gone on under
        another name since.
    :raises ConfigurationError: ``decided``, and the name is free, or a later batch was decided under a name that the
        query had before; or either, and a batch of the query is decided, and not committed yet.
    """
    stream = _locked(connection, namespace, name)
    if stream is None:
        return None
    if decided is not None or forget_query:
        _check_none_under_way(connection, stream)
    values: dict[str, Any] = {"updated_at": now()}
    if checkpoint is not None:
        values["checkpoint"] = checkpoint
    if decided is not None:
        _check_none_behind(connection, stream, decided)
        _note_said(connection, stream, decided)
        values["decided"] = decided
    if forget_query and stream.query_id is not None:
        q = t.stream_queries.c
        connection.execute(
            delete(t.stream_queries).where(q.stream_id == stream.id, q.query_id == stream.query_id)
        )
        known = stream.decided if decided is None else decided
        connection.execute(
            insert(t.stream_queries).values(stream_id=stream.id, query_id=stream.query_id, decided=known)
        )
        values["query_id"] = None
    connection.execute(update(t.streams).where(_C.id == stream.id).values(values))
    return stream_row(connection, namespace, name)


def forget_decided(connection: Connection) -> None:
    """Of no query is it known any more which batch was its last one: the ledger was put back, and got a new id.

    What brokers have of batches since is not found under the new id, so a person has to say. The offsets of what this
    ledger has decided stay: an older checkpoint may plan those batches anew (rule: same-range).
    """
    connection.execute(update(t.streams).values(decided=None, updated_at=now()))
    connection.execute(update(t.stream_queries).values(decided=None))


def settle_slot(connection: Connection, namespace: str, name: str, number: int) -> bool:
    """See :func:`.slots.settle`.

    What it showed may have been a batch that the ledger has forgotten, and from here on nobody looks there any more: a
    person has to say which batch of the query was the last.
    """
    settled = slots.settle(connection, namespace, name, number)
    if settled:
        stream = _locked(connection, namespace, name)
        if stream is not None:
            # of which query the batch was, the slot does not say
            before = t.stream_queries.c.stream_id == stream.id
            connection.execute(update(t.stream_queries).where(before).values(decided=None))
            values = {"decided": None, "updated_at": now()}
            connection.execute(update(t.streams).where(_C.id == stream.id).values(values))
    return settled


def stream_row(connection: Connection, namespace: str, name: str) -> StreamRow | None:
    found = connection.execute(select(t.streams).where(_C.namespace == namespace, _C.name == name)).one_or_none()
    return None if found is None else _row(found, _decided_at(connection, found))


def stream_rows(connection: Connection, namespace: str | None = None) -> list[StreamRow]:
    """By namespace and name."""
    query = select(t.streams).order_by(_C.namespace, _C.name)
    if namespace is not None:
        query = query.where(_C.namespace == namespace)
    return [_row(found, _decided_at(connection, found)) for found in connection.execute(query).all()]


def _row(found: Any, decided_at: str | None = None) -> StreamRow:
    return read_row(StreamRow, found, decided_at=decided_at)


def _decided_at(connection: Connection, stream: Row[Any]) -> str | None:
    """When the last batch of the query was decided."""
    b = t.stream_batches.c
    it = (b.stream_id == stream.id, b.query_id == stream.query_id, b.number == stream.decided)
    return connection.execute(select(b.decided_at).where(*it, b.offsets_sha256 != _SAID)).scalar_one_or_none()


def _locked(connection: Connection, namespace: str, name: str) -> Row[Any] | None:
    query = select(t.streams).where(_C.namespace == namespace, _C.name == name).with_for_update()
    return connection.execute(query).one_or_none()


def _note_said(connection: Connection, stream: Row[Any], number: int) -> None:
    """Note of a batch that the topics have it; nothing happens where it is noted with its offsets."""
    if stream.query_id is None:
        raise ConfigurationError(
            f"query name {stream.name!r} is free: which query's batch {number} is meant is not known",
            remedy="Has a query stopped that asks for it? Its error has the command, with the name and the namespace "
            "that it has now. Else start the query, which binds the name, and say it then",
        )
    if number >= 0:
        names = {"stream_id": stream.id, "query_id": stream.query_id, "number": number}
        insert_first(
            connection, insert(t.stream_batches).values(names | {"offsets_sha256": _SAID, "decided_at": now()})
        )


def _check_none_under_way(connection: Connection, stream: Row[Any]) -> None:
    """What is decided becomes visible behind a person's look at the topics, whichever name it was decided under."""
    c = t.loads.c
    query = select(c.namespace, c.name, c.load_key, c.state).where(c.state.in_(UNVERIFIED)).order_by(c.id)
    for row in connection.execute(query):
        load = LoadIdentity(row.namespace, row.name, row.load_key)
        of = batch_of(load)
        if of is not None and of[0] == stream.query_id:
            raise ConfigurationError(
                f"batch {of[1]} of query {stream.name!r} is decided, and {row.state}: readers may not see it yet",
                remedy=f"Run `airflow-kafka-eos loads recover {load.in_command}` until it is COMMITTED, and look at "
                "the topics behind that. What can never be completed is closed by `loads give-up`",
                load=str(load),
            )


def _check_none_behind(connection: Connection, stream: Row[Any], number: int) -> None:
    """Of what was decided under a name that was set free nothing is written once more.

    Under the query's own name nothing is that is decided, whatever is said; and what another name has that it is bound
    to now is another frame's.
    """
    c, q = t.loads.c, t.stream_queries.c
    last = (
        select(c.namespace, c.name, c.load_key, c.state)
        .join(t.streams, and_(_C.namespace == c.namespace, _C.name == c.name))
        .join(t.stream_queries, q.stream_id == _C.id)
        .where(*_is_free(stream.id, stream.query_id))
        .where(c.load_key.startswith(f"{stream.query_id}-"), c.state.in_(_DECIDED))
        .order_by(func.length(c.load_key).desc(), c.load_key.desc())  # by the batch's number
        .limit(1)
    )
    for row in connection.execute(last):
        load = LoadIdentity(row.namespace, row.name, row.load_key)
        of = batch_of(load)
        if of is not None and of[1] > number:
            raise ConfigurationError(
                f"under {load.name!r} in namespace {load.namespace!r} batch {of[1]} of the same query was decided, and "
                f"is {row.state}: behind {number} it would be written once more",
                remedy=f"Look at the topics once more. Do they have batch {of[1]}? Then say --decided {of[1]}. Were "
                "they put back, or made anew? Then do the steps of docs/streams.md, A new query behind the old one. "
                "Was it another frame's of foreachBatch? Set the new names of the frames free, and let the function "
                "write each by its old one: then say it of each",
                load=str(load),
            )


def _must_lock(connection: Connection, batch: MicroBatch) -> Row[Any]:
    found = _locked(connection, batch.namespace, batch.name)
    if found is None:
        raise InDoubtError(
            f"the ledger does not know query {batch.name!r}, which has begun batches in it: it is another one, or was "
            "restored from a backup",
            remedy="Nothing is written. Restore a newer one; or start the query again: it asks the brokers then",
            load=str(batch.load),
        )
    return found


def _must_be_newest(connection: Connection, own_id: str, batch: MicroBatch, run: StreamRun) -> Row[Any]:
    """The locked row of the batch's query, whose newest run this is, in the ledger that it has opened."""
    stream = _must_lock(connection, batch)
    _check_id(connection, own_id, batch)
    _check_bound(stream, batch, run)
    r = t.stream_runs.c
    known = select(r.number).where(r.stream_id == stream.id, r.identity == run.identity)
    _check_newest(stream, connection.execute(known).scalar_one_or_none(), batch)
    return stream


def _check_id(connection: Connection, own_id: str, batch: MicroBatch) -> None:
    """Rule: only-our-ids. With the query's row locked: no new id comes between this and what is written here."""
    if (found := ledger_id(connection)) != own_id:
        raise OtherLedgerError(
            f"the ledger's id is {found} since `airflow-kafka-eos ledger new-id`, and this run has opened it as "
            f"{own_id}: what it writes would be nobody's",
            remedy="Nothing of the batch is committed. Stop the driver, say by `airflow-kafka-eos streams set "
            f"{name_in_command(batch.load)} --decided N` which batch is the last one that the topics have, and start "
            "the query again",
            load=str(batch.load),
        )


def _check_bound(stream: Row[Any], batch: MicroBatch, run: StreamRun) -> None:
    if stream.query_id != batch.query_id:
        behind = (
            "where it is to go on behind the old query, do the steps of docs/streams.md, A new query behind the old "
            "one. Under another name it would load all that its source has once more"
        )
        if stream.checkpoint == run.checkpoint:
            problem = ": the checkpoint was deleted, or its file `metadata`, and Spark has made a new one there"
            remedy = f"Put the checkpoint back as it was. Is it gone for good? Then, {behind}"
        else:
            problem = ""
            remedy = (
                "Is it another query, into the topics for the first time? Give it a name of its own. Is it the same "
                f"one, which has got another checkpoint? Give it the old one back; or, {behind}"
            )
        raise OtherCheckpointError(
            f"the query name {batch.name!r} is bound to query {stream.query_id} with checkpoint {stream.checkpoint}, "
            f"and this is query {batch.query_id} with checkpoint {run.checkpoint}{problem}",
            remedy=remedy,
            load=str(batch.load),
        )
    if stream.checkpoint != run.checkpoint:
        raise OtherCheckpointError(
            f"query {batch.name!r} is bound to checkpoint {stream.checkpoint}, and this run's is {run.checkpoint}: a "
            "copy of it, for both have the same query id",
            remedy="Run it on the first one; or, where the checkpoint was moved and nobody runs on the first one any "
            f"more, run `airflow-kafka-eos streams set {name_in_command(batch.load)} --checkpoint "
            f"{shlex.quote(run.checkpoint)}`",
            load=str(batch.load),
        )


def _check_one_name(connection: Connection, batch: MicroBatch, run: StreamRun) -> None:
    """A query has one name: under a second one, what is decided and not noted as done would be written once more.

    A function of ``foreachBatch`` may have several, for frames of a batch, and writes all of them in each run: so what
    it calls by a new name is a new frame only where it has written under the others.
    """
    beside = run.beside or ()
    found = next((one for one in _others(connection, batch) if (one.namespace, one.name) not in beside), None)
    if found is None:
        return
    other = replace(batch, namespace=found.namespace, name=found.name).load
    known = f"{found.name!r} in namespace {found.namespace!r}"
    if run.opened_by:
        renamed = "was its DAG, its group, or load_name, renamed?"
        remedy = f"Set load_name={found.name!r} and namespace={found.namespace!r}, by which the ledger knows its "
        remedy += "batches"
    else:
        renamed = "was queryName or load.namespace changed?"
        remedy = f"Call it {known} again, by which the ledger knows its batches"
    if run.beside is not None:
        remedy += (
            ". Is it a frame that is new beside the other? Write that one before it, and wait for it, in each batch. "
            "Does nobody write the other any more? Set its name free, by `airflow-kafka-eos streams set "
            f"{name_in_command(other)} --forget-query`, and run the query: it stops, until --decided says the last "
            "batch that the topics have"
        )
    raise OtherCheckpointError(
        f"the query of checkpoint {run.checkpoint} is known as {known}, and this run calls it {batch.name!r} in "
        f"{batch.namespace!r}: {renamed}",
        remedy=f"{remedy}. A checkpoint of its own would load all that the source has once more",
        load=str(batch.load),
    )


def _others(connection: Connection, batch: MicroBatch) -> list[Row[Any]]:
    """What else the batch's query is bound to: its rows under other names."""
    query = select(t.streams).where(_C.query_id == batch.query_id).order_by(_C.namespace, _C.name)
    mine = (batch.namespace, batch.name)
    return [one for one in connection.execute(query) if (one.namespace, one.name) != mine]


def _set_free(connection: Connection, stream_id: int, query_id: str) -> list[Row[Any]]:
    """Other names that a query was set free of, each with what is known of it under that name."""
    q = t.stream_queries.c
    query = select(_C.namespace, _C.name, q.decided).join(t.stream_queries, q.stream_id == _C.id)
    query = query.where(*_is_free(stream_id, query_id)).order_by(_C.namespace, _C.name)
    return list(connection.execute(query))


def _is_free(stream_id: int, query_id: str) -> tuple[ColumnElement[bool], ...]:
    """Not one that it is bound to again: that is of a frame beside this one."""
    is_bound = and_(_C.query_id.is_not(None), _C.query_id == query_id)
    return t.stream_queries.c.query_id == query_id, _C.id != stream_id, not_(is_bound)


def _check_newest(stream: Row[Any], number: int | None, batch: MicroBatch) -> None:
    """Rule: newest-run-begins."""
    if number != stream.newest_run:
        raise SupersededError(
            f"a newer run has query {batch.name!r}: this one is run {number}, the newest is {stream.newest_run}",
            remedy="Let one driver run a query. This one has to end; nothing of it is visible",
            load=str(batch.load),
        )


def _check_turn(connection: Connection, stream: Row[Any], batch: MicroBatch, run: StreamRun) -> None:
    """Rules: batches-in-turn, same-range."""
    if stream.decided is None:
        names = "".join(
            f". Of those that it has decided under {one.name!r} in namespace {one.namespace!r} the last one is "
            f"{_KNOWN.get(one.decided, one.decided)}"
            for one in _set_free(connection, stream.id, batch.query_id)
        )
        added = (
            f". Was this frame of foreachBatch added to the query? Then N is {batch.number - 1}, though the other "
            f"frames of batch {batch.number} are there"
            if run.beside is not None and batch.number > 0
            else ""
        )
        raise InDoubtError(
            f"the ledger got a new id, a slot of query {batch.name!r} was in doubt, or the query had another name "
            f"before: it does not know which batches the topics have{names}",
            remedy="Nothing is written. Look which batch is the last one that they have, and say so by "
            f"`airflow-kafka-eos streams set {name_in_command(batch.load)} --decided N`: -1 for none; {batch.number} "
            f"passes over the one that the query asks for now{added}",
            load=str(batch.load),
        )
    if batch.number > stream.decided + 1:
        raise _not_its_turn(connection, stream, batch, run)
    b = t.stream_batches.c
    numbers = [batch.number - 1, batch.number]
    query = select(b.number, b.offsets_sha256).where(
        b.stream_id == stream.id, b.query_id == batch.query_id, b.number.in_(numbers)
    )
    decided = {row.number: row.offsets_sha256 for row in connection.execute(query)}
    for number, found in ((batch.number - 1, batch.before_sha256), (batch.number, batch.offsets_sha256)):
        if number in decided and decided[number] not in (found, _SAID):
            raise OtherCheckpointError(
                f"batch {number} of query {batch.name!r} was decided with other offsets than its checkpoint has now: "
                f"the checkpoint is older than the topics, which have all batches up to {stream.decided}",
                remedy="Put back the checkpoint as it was last; or start with a new checkpoint that begins in "
                "the source behind the last row that the topics have (docs/streams.md, A new query behind the old "
                f"one), behind `airflow-kafka-eos streams set {name_in_command(batch.load)} --forget-query`",
                load=str(batch.load),
            )


def _not_its_turn(connection: Connection, stream: Row[Any], batch: MicroBatch, run: StreamRun) -> InDoubtError:
    remedy = (
        "Nothing is written. Was the ledger put back, from a backup or by a failover of its database? Then restore a "
        "newer one, or do the steps of docs/streams.md, Behind a ledger that was restored, and nothing else."
    )
    if run.beside is not None:
        others = _others(connection, batch)
        remedy += (
            " Else: does the function of foreachBatch leave out a batch, an empty one for instance, or go on behind an "
            "error of the write? It must write each, and pass errors on."
            f"{_again(stream, batch, others)}"
        )
        if stream.decided == -1 and others:
            remedy += (
                " Was this frame added to the query? Then it has nothing of the batches before: say so by "
                f"`airflow-kafka-eos streams set {name_in_command(batch.load)} --decided N`, N being "
                f"{batch.number - 1}, and start the query: its rows of batch {batch.number} are written then."
            )
    return InDoubtError(
        f"{batch} is not the next one: the ledger has those up to {stream.decided} as decided",
        remedy=f"{remedy} Was the query another sink's before? Look which batch is the last one that the topics have, "
        f"and say so by `airflow-kafka-eos streams set {name_in_command(batch.load)} --decided N`: what they lack of "
        "those up to there is never written",
        load=str(batch.load),
    )


def _again(stream: Row[Any], batch: MicroBatch, others: list[Row[Any]]) -> str:
    """How a batch that Spark has noted as done, and nobody has written, is asked for again.

    Only of a query that has written before: else it was another sink's, and would begin anew from the oldest offsets
    that its checkpoint has. And Spark plans the batches behind it anew: not where one of these is decided by now, of
    another frame.
    """
    if stream.decided is None or stream.decided < 0:
        return ""
    left_out = stream.decided + 1
    ahead = next((one for one in others if one.decided is None or one.decided > left_out), None)
    if ahead is not None:
        return (
            f" Batch {left_out} cannot be asked for again: {ahead.name!r} has later ones of the same checkpoint. "
            f"Were the frames that were left out, up to batch {batch.number - 1}, empty? Then nothing is lost: say so "
            f"by `airflow-kafka-eos streams set {name_in_command(batch.load)} --decided N`, N being "
            f"{batch.number - 1}. Else write these rows by hand before."
        )
    return (
        f" With its driver stopped, and the checkpoint copied: where it still has offsets/{left_out}, move "
        f"commits/{left_out} and offsets/{left_out + 1} out of it, what is behind them in those two folders, and the "
        f"hidden .crc file of each: the query then asks for batch {left_out} again, and nothing is lost."
    )
