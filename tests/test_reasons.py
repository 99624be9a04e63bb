"""What of an error may stand in the ledger, where nothing masks it."""

from __future__ import annotations

from itertools import islice

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowTaskTimeout

from airflow_kafka_eos.errors import LedgerUnavailableError, NotFinishedError
from airflow_kafka_eos.operators.base import _is_of_ledger
from airflow_kafka_eos.reasons import LONGEST, causes, how_it_ended, noted, reason_of, without_secrets


def raised_from(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no column day\nin the table"), "ValueError: no column day in the table"),
        (ValueError("one\n\n two\nthree"), "ValueError: one two"),
        (AirflowTaskTimeout(), "AirflowTaskTimeout"),
        (AirflowException("the application failed: KeyError: 'x'"), "the application failed: KeyError: 'x'"),
        (
            NotFinishedError("2 are open", remedy="Run it again", load="a/b/c"),
            "NotFinishedError: 2 are open. Run it again.",
        ),
        (
            raised_from(AirflowFailException("long text"), NotFinishedError("2 are open")),
            "NotFinishedError: 2 are open.",
        ),
    ],
)  # fmt: skip
def test_type_and_message_in_a_line(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


def test_a_chain_of_causes_may_be_a_circle() -> None:
    """What Spark Connect's client raises behind an interrupted operation is; a task must end all the same."""
    first, second = ValueError("first"), ValueError("second")
    raised_from(first, raised_from(second, first))
    assert list(islice(causes(first), 5)) == [first, second]
    assert reason_of(first) == "ValueError: first"
    assert not _is_of_ledger(first)
    assert _is_of_ledger(raised_from(ValueError("third"), LedgerUnavailableError("away")))


@pytest.mark.parametrize("handled_too", [True, False])
def test_what_was_handled_counts_where_it_is_asked_for(handled_too: bool) -> None:
    try:
        try:
            raise ValueError("handled")
        except ValueError:
            raise KeyError("raised")  # noqa: B904
    except KeyError as e:
        assert [str(one) for one in causes(e, handled_too=handled_too)] == ["'raised'", "handled"][: 1 + handled_too]


@pytest.mark.parametrize(
    "text",
    [
        "cannot log in with hunter2%2Fx",
        "cannot log in with hunter2/x as ada",
        "jdbc:postgresql://db/orders?user=ada&password=hunter3&ssl=true",
        "postgresql://ada:hunter4@db:5432/orders",
        "{'sasl.password': 'hunter5', 'x': 1}",
        '{"client_secret": "hunter6 and more"}',
        "Authorization: Bearer hunter7hunter7",
        "fs.s3a.secret.key=hunter8",
        "AWS_SESSION_TOKEN: hunter9",
    ],
)
def test_what_is_secret_or_looks_so_is_masked(text: str) -> None:
    masked = without_secrets(text, ["hunter2/x"])
    assert "hunter" not in masked and "***" in masked


def test_plain_words_stay() -> None:
    for text in ("password authentication failed for user ada", "kafka://127.0.0.1:9092/orders", "the key 2026-01-01"):
        assert without_secrets(text, ["abc", ""]) == text


def test_it_is_short_and_cut_between_words() -> None:
    text = noted("word " * 1000)
    assert len(text) <= LONGEST and text.endswith("word …")


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "exit code 0"), (1, "exit code 1"), (-9, "killed by SIGKILL"), (137, "killed by SIGKILL")],
)
def test_an_exit_code_in_words(code: int, said: str) -> None:
    assert how_it_ended(code) == said
