"""What of a failed spark-submit is told, and stands in the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kafka_eos.errors import InDoubtError
from airflow_kafka_eos.operators.submitting import own_error_first

SUBMIT = "Cannot execute: spark-submit --conf x=y. Error code is: {}."


def told(text: str, word: str | None = None, **given: Any) -> Exception:
    with pytest.raises(AirflowException) as found, own_error_first(lambda: word, **given):
        raise AirflowException(text)
    return found.value


@pytest.mark.parametrize(
    ("text", "word", "said", "is_final"),
    [
        (f"{SUBMIT.format(1)}\nTopicError: there is none. Make it.", None, "TopicError: there is none. Make it.", True),
        (
            f"{SUBMIT.format(1)}\nairflow-kafka-eos: failed: Py4JJavaError: An error occurred while calling o7.x.\n"
            "airflow-kafka-eos: failed: : org.apache.spark.SparkException: Job aborted\n"
            "airflow-kafka-eos: failed: Caused by: java.io.IOException: disk full",
            None,
            "the Spark application failed: org.apache.spark.SparkException: Job aborted Caused by: "
            "java.io.IOException: disk full",
            False,
        ),
        (
            f"{SUBMIT.format(1)}\nairflow-kafka-eos: failed: PythonException: An exception was thrown\n"
            "airflow-kafka-eos: failed: ValueError: row 7\nairflow-kafka-eos: failed: Caused by: x",
            None, "the Spark application failed: ValueError: row 7", False,
        ),
        # its output is elsewhere, on a node of the cluster
        (SUBMIT.format(1), "TopicError: there is none.", "TopicError: there is none.", True),
        (
            SUBMIT.format(1), "airflow-kafka-eos: failed: ValueError: no table",
            "the Spark application failed: ValueError: no table", False,
        ),
        # an author's error may have the name of one of ours
        (
            SUBMIT.format(1), "airflow-kafka-eos: failed: RecordError: mine",
            "the Spark application failed: RecordError: mine", False,
        ),
        (
            SUBMIT.format(137), None,
            "spark-submit ended with exit code 137, and the application has not said why", False,
        ),
    ],
)  # fmt: skip
def test_the_applications_own_error_comes_first(text: str, word: str | None, said: str, is_final: bool) -> None:
    error = told(text, word)
    assert str(error).startswith(said)
    assert isinstance(error, AirflowFailException) is is_final
    assert "--conf" not in str(error), "a command line of a kilobyte hides it"


@pytest.mark.parametrize("code", [-9, 137])
def test_a_driver_that_was_killed_is_told_what_that_means_and_what_comes_next(code: int) -> None:
    said = str(told(SUBMIT.format(code)))
    assert f"exit code {code}," in said and "killed by SIGKILL (memory ran out" in said
    assert "A retry is safe" in said and "cleanup" in said


@pytest.mark.parametrize(("code", "why"), [(143, "was killed by SIGTERM. A retry is safe"), (1, "did not begin, or")])
def test_memory_is_spoken_of_behind_sigkill_alone(code: int, why: str) -> None:
    said = str(told(SUBMIT.format(code)))
    assert why in said and "memory" not in said


@pytest.mark.parametrize("word", [None, "InDoubtError: who knows?"])
def test_an_error_is_final_where_its_task_says_so(word: str | None) -> None:
    text = SUBMIT.format(1) if word else f"{SUBMIT.format(1)}\nInDoubtError: who knows?"
    assert not isinstance(told(text, word), AirflowFailException)
    assert isinstance(told(text, word, final=(InDoubtError,)), AirflowFailException)


def test_what_did_not_come_from_spark_submit_stays_as_it_is() -> None:
    assert str(told("Spark connection spark_default is missing")) == "Spark connection spark_default is missing"


def test_a_store_that_is_away_hides_no_error() -> None:
    def away() -> str:
        raise OSError("away")

    with pytest.raises(AirflowException, match="exit code 1"), own_error_first(away):
        raise AirflowException(SUBMIT.format(1))
