"""``transactions commit``, ``abort`` and ``force-terminate``: the ledger is asked, and written, first.

Rule: decide-before-kafka.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.cleanup import add_quiet
from airflow_kafka_eos.cli.cluster import add_cluster, add_namespace, open_session, person
from airflow_kafka_eos.cli.confirm import add_yes, confirm
from airflow_kafka_eos.cli.durations import seconds
from airflow_kafka_eos.cli.exits import FOUND, OK
from airflow_kafka_eos.cli.naming import add_place, add_transactional_id, id_at, id_or_place, needed_id
from airflow_kafka_eos.cli.output import add_output, as_json, as_lines
from airflow_kafka_eos.errors import InDoubtError, UndecidableError
from airflow_kafka_eos.load import LoadState, Verdict

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.session import Session


def add_to(transactions: Any) -> None:
    """Add the commands to those of ``transactions``."""
    commit = transactions.add_parser(
        "commit",
        help="roll the decided load of a transaction forward",
        description="Roll the load forward that a transaction is decided to be committed with, all of its "
        "transactions. What nobody has decided is not committed: decide does that, for a whole load.",
    )
    commit.set_defaults(run=_commit)
    abort = transactions.add_parser(
        "abort",
        help="abort the attempt that a transaction belongs to",
        description="Make the attempt that a transaction belongs to undecidable in the ledger, then end all that it, "
        "and older attempts of its load, have open.",
    )
    abort.add_argument("--reason", default="aborted by hand", help="for whoever looks at the ledger later")
    add_place(abort)
    add_quiet(abort)
    abort.set_defaults(run=_abort)
    terminate = transactions.add_parser(
        "force-terminate",
        aliases=["forceTerminateTransaction"],
        help="abort one transaction, ledger first",
        description="Make its attempt undecidable in the ledger, then abort what is open under one transactional id, "
        "by the identity that its coordinator shows. Never one that is decided to be committed, unless its load was "
        "given up by name before (loads give-up). Unlike KIP-939's forceTerminateTransaction it sends no "
        "InitProducerId, which would abort whatever is open by then.",
    )
    terminate.add_argument("--reason", default="terminated by hand", help="for whoever looks at the ledger later")
    terminate.set_defaults(run=_force_terminate)
    for command in (commit, abort, terminate):
        add_transactional_id(command)
        command.add_argument(
            "--deadline", type=seconds, default=60.0, metavar="SECONDS", help="how long to try; default 60"
        )
        add_namespace(command)
        add_cluster(command)
        add_output(command)
    for command in (abort, terminate):
        add_yes(command)


def _commit(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.recovering import recover

    name = needed_id(arguments)
    with open_session(arguments) as session:
        attempt = _attempt(session, name)
        if not _is_decided(session, attempt, name):
            what = "its attempt is aborted" if attempt.verdict is Verdict.ABORT else "nobody has decided it"
            raise UndecidableError(
                f"the transaction is not decided to be committed: {what}",
                remedy="Run decide (clear it in Airflow); only a decision recorded in the ledger is ever committed",
                load=str(attempt.load),
                attempt=attempt.number,
                transactional_id=name,
            )
        row = recover(session, attempt.load, by=person(), deadline_s=arguments.deadline)
        _print(arguments, session, attempt)
    return OK if row.state is LoadState.COMMITTED else FOUND


def _abort(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.leftovers import clean

    named = id_or_place(arguments)
    with open_session(arguments) as session:
        name = named if isinstance(named, str) else id_at(session.partitions.wire, named, arguments.start_offset)
        attempt = _attempt(session, name)
        _refuse_decided(session, attempt, name)
        confirm(arguments, f"Abort attempt {attempt.number} of load {attempt.load}, and end all that it has open?")
        session.ledger.make_undecidable(
            attempt.load, up_to=attempt.number, decided_by=person(), reason=arguments.reason
        )
        _refuse_decided(session, attempt, name)  # decided while we asked
        (swept,) = clean(
            session,
            {attempt.load: attempt.number},
            by=person(),
            quiet_s=arguments.quiet / 1000,
            deadline_s=arguments.deadline,
        )
        if swept.error is not None:
            raise swept.error
        _print(arguments, session, attempt, ended=swept.aborted)
    return OK


def _force_terminate(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.terminating import force_terminate

    name = needed_id(arguments)
    with open_session(arguments) as session:
        attempt = _attempt(session, name)
        confirm(arguments, f"Abort {name}, of attempt {attempt.number} of load {attempt.load}?")
        ended = force_terminate(
            session, name, by=person(), reason=arguments.reason, deadline_s=arguments.deadline, of=attempt
        )
        _print(arguments, session, attempt, ended=() if ended is None else (ended.transactional_id,))
    return OK


def _attempt(session: Session, name: str) -> AttemptRow:
    """Whose it is now; refuses what is not ours, or not of this cluster."""
    from airflow_kafka_eos.protocol.elsewhere import refuse_elsewhere
    from airflow_kafka_eos.protocol.holding import present_holder, refuse_foreign

    refuse_foreign(session, name)
    seen = session.coordinator.describe([name]).get(name)
    attempt = present_holder(session, name, seen)
    if attempt is None:
        raise InDoubtError(
            "the ledger does not know the attempt of this transactional id",
            remedy="Check that this is the ledger that opened it; if it was restored from a backup, end nothing before "
            "you have looked at the topic",
            transactional_id=name,
        )
    refuse_elsewhere(session, [attempt])
    return attempt


def _is_decided(session: Session, attempt: AttemptRow, name: str) -> bool:
    """Whether the attempt is decided by now, with a transaction of this id: also one that a repair has replaced."""
    now = session.ledger.attempt(attempt.load, attempt.number)
    if now is None or now.verdict is not Verdict.COMMIT:
        return False
    rows = session.ledger.transactions(attempt.load, attempt.number)
    return any(row.transaction.transactional_id == name for row in rows)


def _refuse_decided(session: Session, attempt: AttemptRow, name: str) -> None:
    if _is_decided(session, attempt, name):
        raise UndecidableError(
            "the transaction is decided to be committed: it is only ever rolled forward",
            remedy="Run `airflow-kafka-eos transactions commit`, or `loads recover`",
            load=str(attempt.load),
            attempt=attempt.number,
            transactional_id=name,
        )


def _print(
    arguments: argparse.Namespace, session: Session, attempt: AttemptRow, ended: tuple[str, ...] = ()
) -> None:
    row = session.ledger.load(attempt.load)
    now = session.ledger.attempt(attempt.load, attempt.number)
    shown = {
        "load": str(attempt.load),
        "state": None if row is None else row.state.value,
        "attempt": attempt.number,
        "verdict": None if now is None or now.verdict is None else now.verdict.value,
        "aborted": list(ended),
    }
    print(as_json(shown) if arguments.output == "json" else as_lines(shown))
