"""Guards against a ledger that was put back: what a coordinator may hide, and who asks before an attempt is aborted."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_PROTOCOL = "airflow_kafka_eos/protocol/"
_GUARD = _PROTOCOL + "guards/restored_ledger.py"
_HIDDEN = "tests/protocol/test_hidden_commits.py::"
_ASKED = (_HIDDEN + "test_nobody_aborts_an_attempt_of_which_the_ledger_has_lost_the_decision",)

OF_RESTORED: tuple[Mutation, ...] = (
    Mutation(
        "unknown-commit-stops",
        "terminated-against-a-commit",
        "a person makes no attempt undecidable of which brokers show a commit",
        _PROTOCOL + "cleanup/force_terminate.py",
        "    check_may_abort(session, attempt.load)\n",
        "",
        _ASKED,
    ),
    Mutation(
        "unknown-commit-stops",
        "aborted-by-hand-against-a-commit",
        "nor does `transactions abort`",
        "airflow_kafka_eos/cli/ending.py",
        "        check_may_abort(session, attempt.load)\n",
        "",
        _ASKED,
    ),
    Mutation(
        "unknown-commit-stops",
        "begun-is-submitted",
        "an attempt that was only opened has no writers: what is open under its ids is forgotten",
        _GUARD,
        "for row in session.ledger.attempts(load) if row.is_submitted}",
        "for row in session.ledger.attempts(load)}",
        (_HIDDEN + "test_an_attempt_that_was_only_opened_has_nothing_open",),
    ),
    Mutation(
        "listing-only-adds",
        "hidden-load-begun",
        "while a coordinator moves or is away, no listing says that the ledger knows all",
        _GUARD,
        "    return not watch.has_moved()\n",
        "    return True\n",
        (_HIDDEN + "test_what_a_coordinator_may_hide_stops_for_now",),
    ),
    Mutation(
        "listing-only-adds",
        "moved-at-once",
        "a coordinator that moves while brokers are restarted is waited for a moment",
        _GUARD,
        "        if time.monotonic() >= give_up:\n",
        "        if give_up:\n",
        (_HIDDEN + "test_a_coordinator_that_moves_is_waited_for_a_moment",),
    ),
    Mutation(
        "listing-only-adds",
        "hidden-under-a-slot",
        "nor that it knows all commits under slots",
        _GUARD,
        "        listed = _listed_by_all(\n            session, load, listing, SETTLES_S, "
        "\"brokers know more of the name's slots than the ledger\"\n        )\n",
        "        listed = listing()\n",
        (_HIDDEN + "test_a_commit_under_a_slot_may_be_hidden_too",),
    ),
    Mutation(
        "listing-only-adds",
        "unreported-is-named",
        "what an attempt has that has reported nothing the ledger does not know by name",
        _GUARD,
        "row.is_prepared and row.slot is None for row",
        "row.slot is None for row",
        (_HIDDEN + "test_what_a_coordinator_may_hide_stops_for_now",),
    ),
    Mutation(
        "listing-only-adds",
        "slot-is-named",
        "and of a pooled id it does not know whose it is",
        _GUARD,
        "row.is_prepared and row.slot is None for row",
        "row.is_prepared for row",
        (_HIDDEN + "test_what_the_ledger_knows_by_name",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "quiet-as-soon-as-reported",
        "an application that has reported may live on, and a first run of a task with it",
        _PROTOCOL + "cleanup/sweep.py",
        "not (r.is_prepared and r.writers_left is False)",
        "not r.is_prepared",
        ("tests/protocol/test_leftovers.py::test_who_may_begin_one_more_is_waited_for",),
    ),
)
