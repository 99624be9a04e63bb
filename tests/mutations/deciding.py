"""Guards of deciding and of identities: who may decide, which attempt, whose ids."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LEDGER = "airflow_kafka_eos/ledger/"
_PROTOCOL = "airflow_kafka_eos/protocol/"
_KAFKA = "airflow_kafka_eos/kafka/"
_SPARK = "airflow_kafka_eos/spark/"
_KILLED = "tests/crashes/test_crash_points.py::test_killed_and_recovered"

OF_DECIDING: tuple[Mutation, ...] = (
    Mutation(
        "decide-before-kafka",
        "kafka-before-ledger",
        "the decision stands before the first EndTxn is sent",
        _PROTOCOL + "stages/decide.py",
        "    check_committable(session, ref, asked, found, owner=owner)\n",
        "    check_committable(session, ref, asked, found, owner=owner)\n"
        "    session.coordinator.end_many(manifest.transactions, Verdict.COMMIT)\n",
        (_KILLED + "[4.4 and decide_commit]",),
    ),
    Mutation(
        "decide-before-kafka",
        "sweep-without-ledger",
        "cleanup makes attempts undecidable before it looks for what to abort",
        _PROTOCOL + "cleanup/sweep.py",
        "rows = session.ledger.make_undecidable(load, up_to=up_to, decided_by=by,",
        "rows = (lambda **_: [r for r in session.ledger.attempts(load) if r.number <= up_to])(decided_by=by,",
        ("tests/protocol/test_sweeping.py::test_the_ledger_is_written_before_kafka_is_told",),
    ),
    Mutation(
        "decide-before-kafka",
        "commit-undecided",
        "a commit pass asks for the decision, not only for transactions",
        _PROTOCOL + "stages/commit.py",
        "    if known is None or known.attempt.verdict is not Verdict.COMMIT:",
        "    if known is None:",
        (
            "tests/protocol/test_committing.py::test_a_pass_ends_nothing_that_is_not_decided_to_be_committed",
        ),
    ),
    Mutation(
        "one-decision-per-load",
        "no-row-lock",
        "deciding and opening lock the load's row (PostgreSQL, MySQL)",
        _LEDGER + "queries.py",
        "select(t.loads).where(_is(load)).with_for_update()",
        "select(t.loads).where(_is(load))",
        ("tests/ledger/test_ledger_races.py::test_whoever_comes_during_a_decision_waits_for_it",),
    ),
    Mutation(
        "one-decision-per-load",
        "no-begin-immediate",
        "deciding and opening lock the database (SQLite)",
        _LEDGER + "database.py",
        '"BEGIN" if read else "BEGIN IMMEDIATE"',
        '"BEGIN"',
        ("tests/ledger/test_ledger_races.py",),
    ),
    Mutation(
        "one-decision-per-load",
        "older-attempt-decided",
        "only the newest attempt is decided",
        _LEDGER + "decisions.py",
        "            if newest is not None and newest.number != attempt.number:",
        "            if newest is None:",
        ("tests/ledger/test_ledger_decisions.py::test_commit_needs_the_newest_attempt",),
    ),
    Mutation(
        "one-decision-per-load",
        "aborted-attempt-decided",
        "what is aborted is never committed",
        _LEDGER + "decisions.py",
        '        case Verdict.ABORT:\n            return f"it was aborted {by}: {attempt.reason}"\n',
        '        case Verdict.ABORT:\n            return ""\n',
        ("tests/ledger/test_ledger_decisions.py::test_an_aborted_attempt_is_never_committed",),
    ),
    Mutation(
        "one-decision-per-load",
        "opening-aborts-nothing",
        "opening an attempt aborts every undecided one in the same transaction",
        _LEDGER + "decisions.py",
        "        if a.is_undecided and a.number <= up_to\n",
        "        if a.is_undecided and a.number < 0\n",
        ("tests/ledger/test_ledger_attempts.py",),
    ),
    Mutation(
        "one-application-per-attempt",
        "shared-attempt",
        "an attempt is given to one application only",
        _LEDGER + "attempts.py",
        "    if newest is None or newest.is_submitted:",
        "    if newest is None:",
        ("tests/ledger/test_ledger_attempts.py::test_submit_never_gives_one_attempt_twice",),
    ),
    Mutation(
        "one-application-per-attempt",
        "prepared-thrown-away",
        "clearing only decide keeps a prepared attempt",
        _LEDGER + "attempts.py",
        "(newest.is_prepared or not newest.is_submitted)",
        "(not newest.is_submitted)",
        ("tests/ledger/test_ledger_attempts.py::test_begin_keeps_a_good_prepared_attempt",),
    ),
    Mutation(
        "one-application-per-attempt",
        "claim-replaced",
        "a claim is made once, create-only",
        _SPARK + "storage.py",
        "os.link(unfinished, path)  # refuses",
        "os.replace(unfinished, path)  # refuses",
        ("tests/spark/test_manifest_store.py::test_a_second_claim_is_refused_and_names_the_first",),
    ),
    Mutation(
        "one-application-per-attempt",
        "earlier-application-taken-up",
        "a try of an operator of the author's runs its own application",
        "airflow_kafka_eos/operators/own_submitter.py",
        "                setattr(self, name, False)\n",
        "                pass\n",
        ("tests/adapters/test_own_submitter.py::test_no_try_takes_up_the_application_of_an_earlier_one",),
    ),
    Mutation(
        "one-application-per-attempt",
        "token-of-two-tries",
        "a platform that takes one token for one request is given another one at each try",
        "airflow_kafka_eos/operators/own_submitter.py",
        "load.key, ref.attempt, str(try_id)])",
        "load.key, ref.attempt])",
        ("tests/adapters/test_own_submitter.py::"
         "test_a_token_is_one_trys_alone_and_fits_where_platforms_want_one",),
    ),
    Mutation(
        "one-application-per-attempt",
        "another-runs-repair-collected",
        "collect takes up what its own run has had prepared again, and abandons no other's",
        "airflow_kafka_eos/operators/collect.py",
        "session.ledger.repairs(row.load) if repair.opened_by == for_people(owner)]",
        "session.ledger.repairs(row.load)]",
        ("tests/airflow/test_own_steps.py::test_another_runs_repair_is_never_collected",),
    ),
    Mutation(
        "one-application-per-attempt",
        "worker-without-a-claim",
        "engine arrow: an attempt is claimed before anything is done for it",
        "airflow_kafka_eos/arrow/engine.py",
        "    store.claim(ref, claimant)\n",
        "",
        ("tests/arrow/test_engine.py::test_an_attempt_is_written_by_one_process",),
    ),
    Mutation(
        "recorded-identity",
        "decided-by-name",
        "a decision names id, producer id and epoch, not the id alone",
        _LEDGER + "queries.py",
        "        query = query.where(c.prepared_transaction_state.in_(sorted({str(one.state) for one in some})))\n"
        "        rows = connection.execute(query).all()\n"
        "        found |= {PreparedTransaction(name, PreparedTxnState.parse(state)) for name, state in rows}\n",
        "        names = set(connection.execute(query).scalars())\n"
        "        found |= {one for one in some if one.transactional_id in names}\n",
        ("tests/ledger/test_ledger_decisions.py::test_only_the_very_identity_is_decided",),
    ),
    Mutation(
        "recorded-identity",
        "reported-unconfirmed",
        "a writer reports its own identity only while the coordinator shows the same",
        _KAFKA + "producer/interface.py",
        "        and seen.state == state\n",
        "",
        ("tests/kafka/test_identity.py::test_anything_else_is_not",),
    ),
    Mutation(
        "decide-what-is-confirmed",
        "decided-unconfirmed",
        "decide refuses a transaction that is open under another identity",
        _PROTOCOL + "stages/decide.py",
        "    if description.state != transaction.state:",
        "    if description.state is None:",
        ("tests/protocol/test_deciding.py::test_what_the_broker_does_not_confirm_is_aborted",),
    ),
    Mutation(
        "decide-what-is-confirmed",
        "markers-by-hand",
        "a transaction that was ended at its leader past the coordinator is not decided",
        _PROTOCOL + "stages/decide.py",
        "        elif states[0].txn_start_offset != w.first_offset:",
        "        elif states[0].txn_start_offset is None:",
        (
            "tests/protocol/test_confirming.py::"
            "test_a_transaction_that_was_ended_in_a_partition_past_its_coordinator_is_not_committed",
        ),
    ),
    Mutation(
        "unknown-commit-stops",
        "forgotten-slots",
        "a commit under a slot that the ledger does not know stops everything",
        _PROTOCOL + "guards/restored_ledger.py",
        "    if not unknown:\n        return\n    doubt = ",
        "    return\n    doubt = ",
        ("tests/protocol/test_restored.py::test_a_pooled_load_that_the_ledger_has_forgotten_is_not_written_twice",),
    ),
    Mutation(
        "verified-end-before-reuse",
        "no-quarantine",
        "a slot with writers left is leased to nobody until their last request has come",
        _LEDGER + "slots.py",
        "        or_(c.quarantined_until.is_(None), c.quarantined_until <= text_of(moment)),\n",
        "",
        (
            "tests/ledger/test_ledger_slots.py::"
            "test_a_slot_with_writers_left_is_quarantined_after_a_commit_too",
        ),
    ),
    Mutation(
        "verified-end-before-reuse",
        "unverified-slot",
        "a slot is free only behind the verified end of what was written with it",
        _LEDGER + "slots.py",
        "        c.released_at.is_not(None),\n        c.doubt",
        "        c.leased_at.is_not(None),\n        c.doubt",
        ("tests/ledger/test_ledger_slots.py::test_a_slot_is_held_until_the_end_is_verified",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "no-deadline",
        "past its deadline a writer begins nothing",
        _KAFKA + "producer/interface.py",
        "    if left <= 0:",
        "    if left is None:",
        ("tests/kafka/test_writers_refusals.py::test_past_its_deadline_it_opens_nothing",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "orphaned-from-the-start",
        "a driver whose task is gone before it begins opens nothing",
        _SPARK + "orphan.py",
        "    elif _has_ended(identity):\n        _leave(last)\n",
        "",
        (
            "tests/spark/test_orphan.py::"
            "test_where_the_parent_is_gone_before_the_application_begins_it_opens_nothing",
        ),
    ),
    Mutation(
        "writers-have-a-deadline",
        "cleanup-tells-nobody",
        "an application that begins behind cleanup finds that its attempt is over",
        "airflow_kafka_eos/sensors.py",
        "                note_superseded(store, ledger.ledger_id, behind)\n",
        "                pass\n",
        ("tests/airflow/test_own_steps.py::test_an_application_that_begins_behind_cleanup_opens_nothing",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "cleanup-tells-only-itself",
        "cleanup tells applications also where the triggerer has swept, which does not know the store",
        "airflow_kafka_eos/sensors.py",
        "            self._tell_at_last(owner_of(context))\n",
        "            pass\n",
        ("tests/airflow/test_own_steps.py::test_nor_where_the_triggerer_has_looked",),
    ),
    Mutation(
        "writers-have-a-deadline",
        "cleanup-for-the-triggerer-tells-nobody",
        "cleanup that waits because the triggerer cannot tells the applications of its own attempts",
        "airflow_kafka_eos/sensors.py",
        "        self._up_to = trigger.up_to  # this try's own, not looked up again\n",
        "",
        (
            "tests/adapters/test_deferral.py::"
            "test_cleanup_that_waits_in_the_triggerers_place_tells_the_applications_of_its_own_attempts",
        ),
    ),
    Mutation(
        "writers-have-a-deadline",
        "deadline-checked-early",
        "the deadline is looked at right before each InitProducerId",
        _KAFKA + "admin/coordinator.py",
        "            before_sending()\n",
        "",
        (
            "tests/kafka/test_coordinator.py::"
            "test_past_the_deadline_nothing_is_initialised_however_long_it_took_to_get_there",
        ),
    ),
    Mutation(
        "only-our-ids",
        "ends-anything",
        "no id of another namespace or ledger is ended or initialised",
        _KAFKA + "admin/coordinator.py",
        "if parsed is None or (parsed.namespace, parsed.ledger_id) != (self._namespace, self._ledger_id):",
        "if transactional_id is None:",
        (
            "tests/kafka/test_coordinator.py::"
            "test_another_deployments_transaction_is_never_ended_or_initialised",
        ),
    ),
    Mutation(
        "only-our-ids",
        "sloppy-ids",
        "an id has one spelling only: what merely looks like ours is another application's",
        "airflow_kafka_eos/naming.py",
        "    return plain if _encode(plain) == text else None",
        "    return plain",
        ("tests/test_naming.py",),
    ),
)
