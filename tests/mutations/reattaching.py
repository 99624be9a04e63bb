"""Guards of a prepare that is waited for: whose application it is, who may begin one, and when it is over."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_OPERATORS = "airflow_kafka_eos/operators/"
_STEPS = "tests/airflow/test_reattaching_steps.py::"
_WATCH = "tests/adapters/test_application_watch.py::"
_RULE = "reattach-to-its-own"

OF_REATTACHING: tuple[Mutation, ...] = (
    Mutation(
        _RULE,
        "clear-taken-for-a-retry",
        "an application is taken up between two clears only",
        _OPERATORS + "reattaching.py",
        'return f"{task_of(context)} cleared {cleared} max_tries {most} retries {task.retries}"',
        "return task_of(context)",
        (_STEPS + "test_a_clear_never_takes_up_the_application_of_before",),
    ),
    Mutation(
        _RULE,
        "running-clear-taken-for-a-retry",
        "the run's count of clears tells a clear of a running task, whose max_tries stays",
        _OPERATORS + "reattaching.py",
        "cleared {cleared} max_tries",
        "max_tries",
        (_STEPS + "test_a_clear_never_takes_up_the_application_of_before",),
    ),
    Mutation(
        _RULE,
        "other-retries-taken-for-a-retry",
        "max_tries alone does not tell the tries before a clear from its retries",
        _OPERATORS + "reattaching.py",
        " retries {task.retries}",
        "",
        (_STEPS + "test_a_clear_never_takes_up_the_application_of_before",),
    ),
    Mutation(
        _RULE,
        "anybodys-application",
        "an application is its own task's only",
        _OPERATORS + "reattaching.py",
        "        if noted is None or noted[1] != go:\n            return None\n        return row",
        "        if noted is None:\n            return None\n        return row",
        (_STEPS + "test_another_runs_application_is_not_taken_up",),
    ),
    Mutation(
        _RULE,
        "retry-begins-anew",
        "a retry looks for the application of the try before",
        _OPERATORS + "prepare.py",
        "waited = None if go is None else self.reattached(context, step, resolved, store, go)",
        "waited = None",
        (_STEPS + "test_a_retry_waits_for_the_very_application_and_the_load_is_there_once",),
    ),
    Mutation(
        _RULE,
        "deferred-for-ever",
        "who comes back from the triggerer defers no more",
        _OPERATORS + "reattaching.py",
        "return self.waited_for(context, step, resolved, store, waited, may_defer=False)",
        "return self.waited_for(context, step, resolved, store, waited, may_defer=True)",
        (_STEPS + "test_who_comes_back_defers_no_more_and_submits_nothing",),
    ),
    Mutation(
        _RULE,
        "aborted-attempt-waited-for",
        "an attempt that was aborted meanwhile is over",
        _OPERATORS + "reattaching.py",
        " or row.verdict is Verdict.ABORT:",
        ":",
        (_STEPS + "test_an_attempt_that_was_aborted_meanwhile_is_not_taken_over_nor_begun_again",),
    ),
    Mutation(
        _RULE,
        "platform-before-manifest",
        "what an application has left counts, whether its platform answers or not",
        _OPERATORS + "application_watch.py",
        "        if self.has_left_word():\n            return None\n"
        "        status, may_run = self._status(self._application)\n",
        "        status, may_run = self._status(self._application)\n",
        (_WATCH + "test_what_it_has_left_counts_and_no_platform_is_asked",),
    ),
    Mutation(
        _RULE,
        "unanswered-taken-for-gone",
        "a look that fails is no end",
        _OPERATORS + "application_watch.py",
        "            if self._failed < MOST_FAILED:\n                return text\n",
        '            self.lost = "unknown"\n            return None\n',
        (_WATCH + "test_a_look_that_fails_is_no_end_and_so_many_in_a_row_are_an_error",),
    ),
    Mutation(
        _RULE,
        "late-word-not-read",
        "what it has left while its platform was asked counts",
        _OPERATORS + "application_watch.py",
        "        if self.has_left_word():  # meanwhile\n            return None\n",
        "",
        (_WATCH + "test_what_it_has_left_while_its_platform_was_asked_counts",),
    ),
    Mutation(
        _RULE,
        "tombstone-taken-for-the-last-word",
        "an application that has given up is about to say why",
        _OPERATORS + "application_watch.py",
        "if store.is_written(ref) and not store.is_given_up(ref):",
        "if store.is_written(ref):",
        (_WATCH + "test_a_tombstone_is_not_the_last_word",),
    ),
    Mutation(
        _RULE,
        "killed-waited-for-for-ever",
        "one that has ended without a word is not waited for by the next try",
        _OPERATORS + "reattaching.py",
        "        if waits is None and not is_good(store, ref):\n            return None\n",
        "",
        (_STEPS + "test_an_application_that_was_killed_is_told_and_a_retry_begins_anew",),
    ),
    Mutation(
        _RULE,
        "waited-past-its-time",
        "one whose time is over is not waited for by the next try",
        _OPERATORS + "reattaching.py",
        "        if waits is not None and waited.until < datetime.now(UTC):\n            return None\n",
        "",
        (_STEPS + "test_one_whose_time_is_over_is_given_up",),
    ),
    Mutation(
        _RULE,
        "other-folder-watched",
        "a triggerer that does not see the folder hands the waiting back",
        "airflow_kafka_eos/triggers.py",
        "        if store.submitted(self.ref) is None:\n",
        "        if False:\n",
        (_STEPS + "TestTheTrigger::test_where_it_does_not_see_the_folder_it_hands_back",),
    ),
)
