"""Run the author's SQL beside a decision, in its database transaction (KIP-939's dual write).

Rule: dual-write-with-the-decision.

Besides their own parameters, statements may name what the decision is about: ``:load_namespace``, ``:load_name``,
``:load_key``, ``:attempt``, ``:records``, ``:bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
    StatementError,
)

from airflow_kafka_eos.dual_write import DualWrite, Statement
from airflow_kafka_eos.errors import (
    ConfigurationError,
    DualWriteError,
    InDoubtError,
    KafkaEosError,
    TransientError,
)
from airflow_kafka_eos.ledger.database import is_passing
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.ledger.transaction_guard import (
    SplitTransactionError,
    error_code,
    insist_on_durability,
    one_transaction,
)
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.transaction import TopicPartition

#: MySQL's errors that name a column, a table or a constraint, and no value
_MYSQL_NAMES = {1054, 1146, 4025}
_REMEDY = "Correct the statement, the data or the user's permissions. Then clear prepare: cleanup aborts this attempt"


def decide_beside(
    ledger: Ledger,
    manifest: Manifest,
    wanted: DualWrite,
    *,
    decided_by: str,
    not_after: float | None = None,
    end_offsets: Mapping[TopicPartition, int] | None = None,
    check_stop: Callable[[], object] = lambda: None,
) -> AttemptRow:
    """:meth:`Ledger.decide_commit <airflow_kafka_eos.ledger.ledger.Ledger.decide_commit>` with the author's SQL in it.

    Where the answer to COMMIT is lost, the ledger is asked with the load's row locked, so behind a COMMIT that is still
    under way: rows and decision are found there together, or are written together once more.

    :raises DualWriteError: a statement failed, or tried to end the transaction. Nothing is decided.
    :raises InDoubtError: it did end the transaction: the decision stands, with a part of the rows only. Whoever asks
        for the decision later finds that, too: :func:`check_finished`.
    """
    beside = Beside(wanted, manifest)
    ref = manifest.attempt
    split, fault = False, ""
    try:
        row = ledger.decide_commit(
            manifest, decided_by=decided_by, not_after=not_after, dual_write=beside, end_offsets=end_offsets,
            check_stop=check_stop,
        )  # fmt: skip
        check_finished(row, beside.where)  # committed on its own by a try before, which a lock or the like has ended
        return row
    except SplitTransactionError:
        split = True
    except DBAPIError as e:
        fault = fault_of(e)  # of COMMIT itself: a deferred constraint of the author's tables
    except KafkaEosError as e:
        e.load, e.attempt = str(ref.load), ref.attempt
        if beside.where and isinstance(e, TransientError):
            e.message += f" (it was at, or behind, {beside.where})"
        if isinstance(e, DualWriteError) and (known := ledger.attempt(ref.load, ref.attempt)) is not None:
            check_finished(known, beside.where)  # it had committed before it failed
        raise
    if split:
        raise _split(ledger, manifest, beside.where)
    error = _failed(f"COMMIT behind {beside.where}", fault)
    error.load, error.attempt = str(ref.load), ref.attempt
    raise error


class Beside:
    """``dual_write`` of :meth:`Ledger.decide_commit <airflow_kafka_eos.ledger.ledger.Ledger.decide_commit>`.

    :ivar where: what runs, or ran last; for errors.
    :raises ConfigurationError: a statement names a parameter that nobody gives.
    """

    def __init__(self, wanted: DualWrite, manifest: Manifest) -> None:
        self.where = ""
        self._manifest = manifest
        self._call = wanted.call
        own = parameters_of(manifest)
        self._statements = [_bound(s, own, f"dual_write_sql statement {n}") for n, s in enumerate(wanted.statements, 1)]

    def __call__(self, connection: Connection) -> None:
        """Run it.

        :raises DualWriteError: a statement failed, by its number and never by its values; or see
            :func:`~airflow_kafka_eos.ledger.transaction_guard.one_transaction`.
        :raises DBAPIError: what may pass (locks, conflicts, a lost connection), for the ledger to try again.
        """
        with one_transaction(connection):
            for number, (statement, values) in enumerate(self._statements, 1):
                self.where = f"dual_write_sql statement {number}"
                self._run(lambda s=statement, v=values: connection.execute(s, v))
            if self._call is not None:
                self.where = "dual_write"
                call = self._call
                self._run(lambda: call(connection, self._manifest))
        insist_on_durability(connection)

    def _run(self, work: Any) -> None:
        fault = ""
        try:
            work()
        except DBAPIError as e:
            if is_passing(e) and not isinstance(e, (DataError, IntegrityError, NotSupportedError, ProgrammingError)):
                raise
            fault = fault_of(e)
        except StatementError as e:
            fault = type(e.orig).__name__
        # outside of the except block: the driver's own exception must not hang on ours, it may quote values
        if fault:
            raise _failed(self.where, fault)


def parameters_of(manifest: Manifest) -> dict[str, Any]:
    """What each statement may name without being given it."""
    load = manifest.attempt.load
    return {
        "load_namespace": load.namespace,
        "load_name": load.name,
        "load_key": load.key,
        "attempt": manifest.attempt.attempt,
        "records": manifest.records,
        "bytes": manifest.bytes,
    }


def fault_of(error: DBAPIError) -> str:
    """What the database said, as far as it cannot hold an author's values."""
    original: Any = error.orig
    parts = [type(original).__name__]
    code = error_code(error)
    if isinstance(code, str):
        parts.append(f"SQLSTATE {code}")
        # 42: names of tables and columns; 23: of constraints. Every other message may quote a value
        if code[:2] in ("42", "23"):
            parts.append(str(getattr(getattr(original, "diag", None), "message_primary", None) or ""))
    elif code is not None:
        parts.append(f"error {code}")
        if code in _MYSQL_NAMES:
            parts.append(str(original.args[1]))
    elif type(original).__module__.partition(".")[0] == "sqlite3":
        parts += [str(getattr(original, "sqlite_errorname", "")), str(original)]
    return ": ".join(filter(None, parts))


def _bound(statement: Statement, own: dict[str, Any], where: str) -> tuple[TextClause, dict[str, Any]]:
    clause = text(statement.sql)
    given = {**own, **statement.parameters}
    wanted = set(clause.compile().params)
    missing = sorted(wanted - set(given))
    if missing:
        raise ConfigurationError(
            f"{where} names the parameter :{missing[0]}, which is not given",
            remedy=f"Pass it beside the text, use one of {', '.join(sorted(own))}, or write a colon as \\:",
        )
    return clause, {name: given[name] for name in wanted}


def _failed(where: str, fault: str) -> DualWriteError:
    return DualWriteError(
        f"{where} failed ({fault}): nothing is decided, and none of its rows is there", remedy=_REMEDY
    )


def check_finished(row: AttemptRow, where: str = "") -> None:
    """Refuse to take a decision for done whose dual write has not got to its end; no retry changes that.

    :param where: what has committed it, or came behind that; empty where that is not known any more.
    :raises InDoubtError: the author's SQL has committed it on its own.
    """
    if row.is_unfinished:
        raise InDoubtError(
            f"the author's SQL committed the ledger's transaction{f' ({where})' if where else ''}: the decision to "
            "commit stands, and of the author's rows those that came before that COMMIT",
            remedy="Look which rows are missing (somebody may have added them already), and add them by hand: the "
            "Kafka records become visible by themselves, and decide runs the SQL no second time. Then say so by "
            "`airflow-kafka-eos loads set-finished NAME KEY --reason …`, with "
            "--conn-id of the load's ledger_conn_id, and clear decide with what is downstream: until then every run of "
            "this key fails. And take out of the SQL what commits: COMMIT, and on MySQL whatever changes a table's "
            "definition",
            load=str(row.load),
            attempt=row.number,
        )


def _split(ledger: Ledger, manifest: Manifest, where: str) -> KafkaEosError:
    """The decision was written before the author's SQL ran: what that has committed holds the decision too."""
    ref = manifest.attempt
    row = ledger.attempt(ref.load, ref.attempt)
    if row is not None and row.verdict is Verdict.COMMIT:
        check_finished(row, where)
    return DualWriteError(
        f"the author's SQL rolled the ledger's transaction back ({where}): nothing is decided",
        remedy="Take ROLLBACK out of it and look whether it has left rows behind; then clear prepare",
        load=str(ref.load),
        attempt=ref.attempt,
    )
