"""Guards of what a key stands for (docs/load-keys.md): a green run that has loaded nothing, or the same once more."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_OPERATORS = "airflow_kafka_eos/operators/"
_STEPS = "tests/airflow/test_steps.py::"
_EDITED = "tests/airflow/test_edited.py::"

OF_KEYS: tuple[Mutation, ...] = (
    Mutation(
        "key-names-the-data",
        "other-topics-pass",
        "a key that was committed into other topics does not pass for this load",
        _OPERATORS + "begin.py",
        "    if not topics or written <= set(topics):",
        "    if topics is not None:",
        (_STEPS + "test_a_key_that_was_committed_into_other_topics_does_not_pass_for_this_load",),
    ),
    Mutation(
        "key-names-the-data",
        "clicked-interval-compared",
        "the interval of a run that was triggered says nothing about data",
        _OPERATORS + "begin.py",
        "    if run.run_type not in _WITH_AN_INTERVAL or start is None or end is None:",
        "    if start is None or end is None:",
        (_STEPS + "test_only_scheduled_runs_have_an_interval_that_says_which_data_they_are_for",),
    ),
    Mutation(
        "key-names-the-data",
        "committed-interval-compared",
        "a committed load is that of every interval",
        "airflow_kafka_eos/ledger/attempts.py",
        "    if locked.committed is not None:\n        return locked.committed\n    # one that is committed",
        "    _check_interval(connection, locked, interval)\n    if locked.committed is not None:\n"
        "        return locked.committed\n    # one that is committed",
        ("tests/ledger/test_ledger_attempts.py::test_a_committed_load_is_that_of_every_data_interval",),
    ),
    Mutation(
        "key-names-the-data",
        "empty-load-takes-the-key",
        "a load without records is refused unless its author allows it",
        _OPERATORS + "decide.py",
        "        min_records: int | None = 1,",
        "        min_records: int | None = None,",
        ("tests/airflow/test_bad_input.py::test_a_load_of_no_records_is_refused_by_default_and_does_not_take_the_key",),
    ),
    Mutation(
        "key-names-the-data",
        "key-none",
        "runs that have nothing for the key's template are not one load",
        _OPERATORS + "base.py",
        '            if self.load_key == "None":',
        '            if self.load_key == "":',
        (_STEPS + "test_a_key_that_its_template_had_nothing_for_is_refused",),
    ),
    Mutation(
        "key-names-the-data",
        "told-of-what-was-not-written",
        "assets follow what was written, not what topics= names",
        "airflow_kafka_eos/sensors.py",
        '        return sorted(arrival["topics"])',
        '        return sorted({*self.topics, *arrival["topics"]})',
        ("tests/adapters/test_lineage.py::"
         "test_openlineage_gets_the_topics_and_their_rows_from_the_run_that_wrote_them",),
    ),
    Mutation(
        "key-names-the-data",
        "edited-under-way",
        "a step goes on with no other load than its run has begun",
        _OPERATORS + "begun.py",
        "    if begun in (None, now):",
        "    if begun is not now:",
        (_EDITED + "test_a_step_behind_begin_refuses_another_load_than_begin_has_begun",),
    ),
    Mutation(
        "key-names-the-data",
        "loaded-under-the-old-name",
        "what a run has loaded, it does not load again under another name",
        _OPERATORS + "begun.py",
        "            and not (again or _is_decided(ledger, load))\n",
        "            and False\n",
        (_EDITED + "test_begin_refuses_what_this_run_has_loaded_under_another_name",),
    ),
    Mutation(
        "key-names-the-data",
        "former-name-put-back",
        "a group that is given its former name back is no load that was always beside the other",
        _OPERATORS + "begun.py",
        "    found = ledger.first_begun(load.namespace, load.name, since=since)",
        "    found = ledger.first_begun(load.namespace, load.name)",
        (_EDITED + "test_a_group_that_the_dag_has_no_more_may_be_this_one_renamed_or_other_data",),
    ),
    Mutation(
        "key-names-the-data",
        "reload-beside-the-old-group",
        "on_committed='reload' is for what is committed, not for what another group of the run is still writing",
        _OPERATORS + "begun.py",
        "        elif row.verdict is None:",
        "        elif row.verdict is None and not again:",
        (_EDITED + "test_a_group_that_the_dag_has_no_more_may_be_this_one_renamed_or_other_data",),
    ),
    Mutation(
        "key-names-the-data",
        "cursor-left-behind",
        "who renames a load with a cursor is told to give it to the new name first",
        _OPERATORS + "begun.py",
        "    if is_other_name and ledger.cursor(old.namespace, old.name) is not None:",
        "    if is_other_name and not ledger:",
        (_EDITED + "test_what_a_new_name_has_to_know_is_said",),
    ),
    Mutation(
        "key-names-the-data",
        "cleanup-of-the-new-name",
        "cleanup is of what the run has begun",
        "airflow_kafka_eos/sensors.py",
        "        if begun is not None and begun != self.load_identity:",
        "        if begun is None:",
        (_EDITED + "test_cleanup_sweeps_what_begin_has_begun",),
    ),
    Mutation(
        "one-key-loads-once",
        "reload-told-of-as-a-double",
        "a reload asks for the same by name",
        _OPERATORS + "asked_for.py",
        "    others = [a for a in same if first_key(a.load.key) != first_key(row.load.key)]",
        "    others = [a for a in same if a.load.key != row.load.key]",
        ("tests/adapters/test_job_arguments.py",),
    ),
)  # fmt: skip
