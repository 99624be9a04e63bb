"""Guards of what one at a time does: a lease is one task's, and whoever has none waits."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_LEASES: tuple[Mutation, ...] = (
    Mutation(
        "lease-for-the-first-event",
        "anybodys-lease",
        "a lease that another one has is not taken before its time is over",
        "airflow_kafka_eos/ledger/leases.py",
        "or_(c.taken_by == by, c.taken_at <= text_of(now - ttl))",
        "or_(c.taken_by == by, c.taken_at <= text_of(now))",
        ("tests/ledger/test_ledger_leases.py::test_a_thing_is_one_tasks_at_a_time_until_its_lease_is_over",),
    ),
    Mutation(
        "lease-for-the-first-event",
        "told-without-a-lease",
        "a task whose success would make what another one is making waits",
        "airflow_kafka_eos/lineage.py",
        "            if other is None:\n                return\n",
        "            if other is None or left:\n                return\n",
        ("tests/adapters/test_first_event.py::test_one_goes_and_the_others_when_airflow_has_its_success",),
    ),
)
