"""bench.parse measures an import that really happens, behind one that really is Airflow's."""

from __future__ import annotations

from bench.parse import measure


def test_both_kinds_are_measured_and_ours_imports_our_own_modules_only() -> None:
    found = measure(1)
    assert len(found.without) == len(found.with_ours) == len(found.statement) == 1
    assert found.modules > 10
    assert 0 < found.added_ms / 1000 < found.with_ours[0]
