"""What a query's options refuse before it has run."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.errors import ConfigurationError, InvalidNameError
from airflow_kafka_eos.micro_batch import MicroBatch
from airflow_kafka_eos.naming import check_length
from airflow_kafka_eos.streams.options import StreamOptions

NOBODY = "00000000-0000-0000-0000-000000000000"


def fits(name: str, number: int) -> bool:
    try:
        check_length(MicroBatch("airflow", name, NOBODY, number, "").load, "0" * 10)
    except InvalidNameError:
        return False
    return True


def is_taken(name: str) -> bool:
    try:
        StreamOptions.parse({"queryName": name, "checkpointLocation": "/c", "topic": "t"})
    except InvalidNameError:
        return False
    return True


def test_a_name_has_room_for_every_batch_to_come() -> None:
    """Else the query would end for good behind batch 9, 99, …"""
    longest = max(length for length in range(1, 200) if is_taken("n" * length))
    assert fits("n" * longest, 2**63 - 1)
    assert not fits("n" * (longest + 1), 2**63 - 1)
    assert fits("n" * (longest + 1), 0)


def test_one_that_is_too_long_says_so() -> None:
    with pytest.raises(InvalidNameError, match="characters long"):
        StreamOptions.parse({"queryName": "n" * 200, "checkpointLocation": "/c", "topic": "t"})


def test_a_writer_without_two_phase_commit_is_refused_where_that_is_required() -> None:
    """Before a batch is begun."""
    given = {"queryName": "n", "checkpointLocation": "/c", "topic": "t", "writer": "confluent"}
    StreamOptions.parse(given)
    with pytest.raises(ConfigurationError, match="has no way to"):
        StreamOptions.parse(given | {"transaction.two.phase.commit": "required"})


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("stream.reply", "Did you mean stream.replay"),
        ("commit.timeout", "Did you mean commit.timeout.ms"),
        ("checkpoint.location", "Did you mean checkpointLocation"),
        ("topicc", "Did you mean topic"),
    ],
)
def test_a_misspelled_option_is_told_what_a_stream_has(key: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the option {key} of kafka_eos is unknown. {said}"):
        StreamOptions.parse({"queryName": "n", "checkpointLocation": "/c", "topic": "t", key: "x"})


def test_what_there_is_names_no_option_that_a_stream_refuses() -> None:
    with pytest.raises(ConfigurationError, match="Known are queryName, checkpointLocation") as refused:
        StreamOptions.parse({"queryName": "n", "checkpointLocation": "/c", "topic": "t", "zzz": "x"})
    assert "batch.timeout.ms" in refused.value.remedy and "load.key" not in refused.value.remedy
