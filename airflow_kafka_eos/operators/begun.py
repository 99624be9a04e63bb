"""What a run has begun, where its DAG file names another load by now: it was edited while the run was at work.

A DAG bundle that is not versioned gives each task the file as it is then. Another namespace, load name or key for the
same data is another load to the ledger: it would be written once more beside the first one (rule: key-names-the-data).
So the steps behind begin ask what begin has begun, and begin asks the ledger what its own group has loaded in this run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.generation import first_key
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict, name_in_command
from airflow_kafka_eos.micro_batch import is_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow

#: the ``step_name`` of what begins a load
BEGIN = "begin"


def begun_in_run(task: Any, context: Any) -> LoadIdentity | None:
    """What the begin before this task, in its group, has begun in this run; None where that is not known."""
    if not task.has_dag():
        return None
    group = task.task_id.rpartition(".")[0]
    found = [
        one.task_id
        for one in task.get_flat_relatives(upstream=True)
        if getattr(one, "step_name", None) == BEGIN and one.task_id.rpartition(".")[0] == group
    ]
    if len(found) != 1:  # hand-written, several loads in one group
        return None
    ti = context["ti"]
    told = ti.xcom_pull(task_ids=found[0], map_indexes=ti.map_index)
    if not isinstance(told, dict) or not {"namespace", "load_name", "load_key"} <= told.keys():
        return None  # marked by a person, or of a version before
    return LoadIdentity(told["namespace"], told["load_name"], told["load_key"])


def check_begun(now: LoadIdentity, begun: LoadIdentity | None) -> None:
    """
    :param now: as the DAG file names it.
    :raises ConfigurationError: the run has begun another load.
    """
    if begun in (None, now):
        return
    assert begun is not None
    if _is_same(begun, now):
        raise ConfigurationError(
            f"this run has begun {begun}, to load {now} once more, and the DAG file has no on_committed='reload' any "
            "more: it was edited meanwhile",
            remedy="Nothing was done here. Put it back, and clear this task: the run goes on as it has begun",
            load=str(begun),
        )
    raise ConfigurationError(
        f"this run has begun {begun}, and the DAG file names {now} now: it was edited meanwhile",
        remedy="Nothing was done here. Put the old namespace, load_name and load_key back, and clear this task: the "
        f"run goes on as it has begun. `airflow-kafka-eos loads show {begun.in_command}` says how far it is. Where "
        "the new names are meant from now on, pause the DAG until they know what the old ones have loaded "
        "(docs/load-keys.md, A new name knows no old key), and clear begin then. Or is this task of another load than "
        "the begin before it? Then give each a task group of its own",
        load=str(begun),
    )


def check_not_begun_before(
    ledger: Ledger,
    load: LoadIdentity,
    *,
    owner: str,
    by: str,
    is_own: Callable[[AttemptRow], bool],
    topics: Sequence[str],
    again: bool,
) -> None:
    """Refuse to load once more what this run has loaded, or is loading, under another name. Before anything is opened.

    What it has only opened there is closed: nobody goes on with it.

    A group that the DAG has no more may have been renamed to this one, or taken out, with data of its own. Where both
    names have begun loads by turns, they are two loads.

    :param load: what the DAG file names, of the first generation.
    :param owner: this very part of the run.
    :param by: who asks; how the owners begin whose loads are looked at.
    :param is_own: whether an attempt may be of the same data: of this owner, or of a group that is gone.
    :param topics: the load's; none: not known.
    :param again: what is committed may be written once more: that was asked for.
    :raises ConfigurationError: naming the other load.
    """
    for known, row in ledger.overview_of(ledger.begun_by(by)):
        if row is None or not is_own(row) or is_driver(row.submitted_by) or _is_same(known.load, load):
            continue
        is_gone = row.responsible != owner
        if is_gone and _are_two(ledger, load, known):
            continue
        if row.verdict is None and not row.is_submitted:
            _close(ledger, row, f"the DAG file was edited: begun anew as {load}", by)
        elif row.verdict is None:
            raise ConfigurationError(
                f"this run is loading {row.load} (attempt {row.number} is {known.state.value}), and begins {load} now: "
                "the same data would be there twice",
                remedy=f"Nothing was opened. {_put_back(row, is_gone)}: it goes on. Or end it, and clear begin then: "
                f"`airflow-kafka-eos cleanup {row.load.in_command}`",
                load=str(row.load),
                attempt=row.number,
            )
        elif (
            row.verdict is Verdict.COMMIT
            and known.state is not LoadState.GIVEN_UP
            and not (again or _is_decided(ledger, load))
        ):
            written = set(ledger.summary(row.load, row.number).topics)
            if not written or (topics and written.isdisjoint(topics)):
                continue  # it was empty, or the same data goes elsewhere now
            raise ConfigurationError(
                f"this run has loaded {row.load} into {', '.join(sorted(written))} (decided at {row.decided_at}, it is "
                f"{known.state.value}), and begins {load} now: the same data would be there twice",
                remedy=f"Nothing was opened. {_put_back(row, is_gone)}: what is loaded passes. "
                f"{'' if is_gone else _meant(ledger, row, load)}{_OTHER_DATA}",
                load=str(row.load),
                attempt=row.number,
            )


_OTHER_DATA = (
    "Is it other data (another parameter, a run made anew, what a task before has found, a load in the place of one "
    "that was taken out)? Set on_committed='reload' until this run is through, and clear begin; then take it out "
    "again (docs/load-keys.md, The DAG file is edited while a run is at work)"
)


def _put_back(row: AttemptRow, is_gone: bool) -> str:
    if is_gone:
        return (
            "Was its group, which the DAG has no more, renamed to this one? Then set "
            f"load_name={row.load.name!r} here, and clear begin"
        )
    return "Was the DAG file edited? Put the old namespace, load_name and load_key back, and clear begin"


def _meant(ledger: Ledger, row: AttemptRow, load: LoadIdentity) -> str:
    """What to do where the new names are meant: they know nothing of what the old ones have loaded."""
    old = row.load
    is_other_name = (old.namespace, old.name) != (load.namespace, load.name)
    steps = f"`airflow-kafka-eos loads set-committed {load.in_command} --reason renamed`"
    if is_other_name and ledger.cursor(old.namespace, old.name) is not None:
        steps = (
            f"`airflow-kafka-eos cursors set {name_in_command(load)} --new --to … --reason renamed`, with the position "
            f"that `airflow-kafka-eos cursors show {name_in_command(old)}` prints, for a new name reads all that the "
            "source has; then "
            f"{steps}"
        )
    return (
        "Are the new names meant from now on, for the same data? Pause the DAG, and once that load is COMMITTED: "
        f"{steps}, and so for every key that may be cleared or backfilled (docs/load-keys.md, A new name knows no old "
        "key); then clear begin, and unpause it. "
    )


def _close(ledger: Ledger, row: AttemptRow, reason: str, by: str) -> None:
    """No application was submitted for it; undecidable, none will be."""
    for mine in ledger.make_undecidable(row.load, up_to=row.number, decided_by=by, reason=reason):
        if mine.number == row.number and mine.verdict is Verdict.ABORT and not mine.is_submitted:
            ledger.record_swept(row.load, row.number)


def _are_two(ledger: Ledger, load: LoadIdentity, known: LoadRow) -> bool:
    """Whether the load's name has begun a load while the other one was in use: so neither is the other one's new name.

    A name that came behind the other one, or was left for it and is put back, has begun none.
    """
    since = ledger.first_begun(known.load.namespace, known.load.name)
    if since is None:
        return False
    found = ledger.first_begun(load.namespace, load.name, since=since)
    return found is not None and found < known.created_at


def _is_decided(ledger: Ledger, load: LoadIdentity) -> bool:
    state = ledger.state(load)
    return state is not None and state.is_decided


def _is_same(known: LoadIdentity, load: LoadIdentity) -> bool:
    """Whether one is a generation of the other."""
    return replace(known, key=first_key(known.key)) == load
