"""The partitions' logs judge an outcome; all but one clear story stops for a person (rule: log-is-the-evidence)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.transaction import Marker, Outcome, judge, judge_decided

C, A, M, U = Marker.COMMIT, Marker.ABORT, Marker.MISSING, Marker.UNREADABLE
some_markers = st.lists(st.sampled_from(Marker), max_size=12)


@pytest.mark.parametrize(
    ("markers", "outcome"),
    [
        ([C], Outcome.COMMITTED),
        ([C, C, C], Outcome.COMMITTED),
        ([A], Outcome.ABORTED),
        ([A, A], Outcome.ABORTED),
        ([M], Outcome.OPEN),
        ([C, M], Outcome.OPEN),
        ([A, M], Outcome.OPEN),
        ([C, A], Outcome.IN_DOUBT),
        ([C, A, M], Outcome.IN_DOUBT),  # the missing marker cannot make a mixed story one
        ([U], Outcome.IN_DOUBT),
        ([C, U], Outcome.IN_DOUBT),
        ([A, U], Outcome.IN_DOUBT),
        ([M, U], Outcome.IN_DOUBT),
        *(
            ([*others, untold], Outcome.IN_DOUBT)
            for untold in (
                Marker.COMPACTED,
                Marker.COMPACTED_THEN_COMMIT,
                Marker.COMPACTED_THEN_ABORT,
                Marker.MISSING_FOR_GOOD,
            )
            for others in ([], [C], [A], [M])
        ),
        ([], Outcome.IN_DOUBT),
    ],
)
def test_the_table_of_outcomes(markers: list[Marker], outcome: Outcome) -> None:
    assert judge(markers) is outcome


@given(some_markers, st.randoms())
def test_the_order_of_partitions_does_not_matter(markers: list[Marker], random: object) -> None:
    shuffled = list(markers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert judge(shuffled) is judge(markers)
    assert judge(iter(markers + markers)) is judge(markers)


@given(some_markers)
def test_done_is_said_only_when_every_partition_says_so(markers: list[Marker]) -> None:
    assert (judge(markers) is Outcome.COMMITTED) == (bool(markers) and all(m is C for m in markers))
    assert (judge(markers) is Outcome.ABORTED) == (bool(markers) and all(m is A for m in markers))


@given(some_markers, some_markers)
def test_more_evidence_never_turns_one_verdict_into_the_other(seen: list[Marker], later: list[Marker]) -> None:
    ends = {judge(seen), judge(seen + later)}
    assert not {Outcome.COMMITTED, Outcome.ABORTED} <= ends


@given(some_markers)
def test_aborted_although_the_decision_was_commit_is_lost(markers: list[Marker]) -> None:
    decided = judge_decided(markers)
    assert decided is not Outcome.ABORTED
    assert (decided is Outcome.LOST) == (judge(markers) is Outcome.ABORTED)
    assert decided is judge(markers) or decided is Outcome.LOST
