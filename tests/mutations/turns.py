"""Guards of what one at a time does: a turn has one holder, and whoever has none waits."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_TURNS: tuple[Mutation, ...] = (
    Mutation(
        "turns-for-the-first-event",
        "anybodys-turn",
        "a turn that another one has is not taken before its time is over",
        "airflow_kafka_eos/ledger/leases.py",
        "or_(c.taken_by == by, c.taken_at <= text_of(now - turn))",
        "or_(c.taken_by == by, c.taken_at <= text_of(now))",
        ("tests/ledger/test_ledger_turns.py::test_a_thing_is_one_holders_at_a_time_until_its_turn_is_over",),
    ),
    Mutation(
        "turns-for-the-first-event",
        "told-out-of-turn",
        "a task whose success would make what another one is making waits",
        "airflow_kafka_eos/lineage/assets.py",
        "            if holder is None:\n                return\n",
        "            if holder is None or left:\n                return\n",
        ("tests/adapters/test_first_event.py::test_one_goes_and_the_others_when_airflow_has_its_success",),
    ),
)
