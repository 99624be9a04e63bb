"""Whether an application elsewhere is over: by a real folder, and a platform that says what the test wants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kafka_eos import manifest
from airflow_kafka_eos.errors import NotFinishedError
from airflow_kafka_eos.operators.application_watch import (
    MOST_FAILED,
    MOST_WORDLESS,
    ApplicationWatch,
    Status,
    status_by_spark_submit,
)
from airflow_kafka_eos.operators.reattaching import is_good, left
from airflow_kafka_eos.spark.errortext import FAILED
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.spark.test_manifest_store import EMPTY, REF

TEXT = manifest.dump(EMPTY)
RUNNING, ENDED = ("RUNNING", True), ("FAILED", False)


class Platform:
    """Says one thing after the other, the last one for ever; None: it does not answer."""

    def __init__(self, *says: Status | None, then: Callable[[], object] = lambda: None) -> None:
        self.says, self.then, self.asked = list(says), then, 0

    def __call__(self, application: str) -> Status:
        self.asked += 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        self.then()
        if said is None:
            raise RuntimeError("HTTP 503")
        return said


@pytest.fixture
def store(tmp_path: Path) -> ManifestStore:
    return ManifestStore(str(tmp_path))


def watch(store: ManifestStore, platform: Platform) -> ApplicationWatch:
    return ApplicationWatch(store, REF, "application_1", platform)


def test_what_it_has_left_counts_and_no_platform_is_asked(store: ManifestStore) -> None:
    store.write(REF, TEXT)
    platform = Platform(None)
    found = watch(store, platform)
    assert (found.look(), found.lost, platform.asked) == (None, None, 0)
    assert left(store, REF, "application_1", None) == EMPTY


def test_what_it_has_left_while_its_platform_was_asked_counts(store: ManifestStore) -> None:
    """It wrote its manifest, and ended, between the two."""
    found = watch(store, Platform(ENDED, then=lambda: store.write(REF, TEXT)))
    assert (found.look(patient=False), found.lost) == (None, None)


def test_a_platform_that_does_not_answer_is_waited_for_however_long(store: ManifestStore) -> None:
    """What was left can be looked at all the while."""
    found = watch(store, Platform(*[None] * (5 * MOST_FAILED), RUNNING, None))
    for number in range(5 * MOST_FAILED):
        assert "cannot be asked: RuntimeError: HTTP 503" in (found.look() or "")
        assert found.never_answered == number + 1
    assert (found.look(), found.never_answered) == ("application_1 is RUNNING", 0)
    assert (found.look() is not None, found.never_answered) == (True, 0)
    store.write(REF, TEXT)
    assert (found.look(), found.lost) == (None, None)


def test_a_store_that_does_not_answer_is_no_end_and_so_many_looks_in_a_row_are_an_error(
    store: ManifestStore, tmp_path: Path
) -> None:
    found = watch(store, Platform(ENDED))
    store.write(REF, TEXT)
    path = Path(store.path(REF))
    text = path.read_text()

    def away() -> None:
        path.unlink()
        path.mkdir()  # cannot be read
        for _ in range(MOST_FAILED - 1):
            assert "cannot be read" in (found.look() or "")

    away()
    path.rmdir()
    path.write_text(text)
    assert (found.look(), found.lost) == (None, None)
    away()  # counted anew
    with pytest.raises(NotFinishedError, match=f"{MOST_FAILED} looks in a row have failed") as caught:
        found.look()
    assert (caught.value.load, caught.value.attempt, found.lost) == (str(REF.load), REF.attempt, None)


class Spark:
    """Answers as a SparkSubmitOperator's backend: a text, or an error."""

    def __init__(self, says: str | Exception) -> None:
        self.says = says

    def get_job_status(self, application: str, context: object) -> str:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def is_job_active(self, status: str) -> bool:
        return status in ("RUNNING", "Running", "Pending")


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("RUNNING", ("RUNNING", True)),
        ("FAILED", ("FAILED", False)),
        ("Unknown", ("Unknown", True)),  # Kubernetes: the pod's node is not reached for now
        ("NotFound", ("NotFound", False)),
        (RuntimeError("YARN RM REST API returned HTTP 404 for application a"), ("not known to YARN any more", False)),
    ],
)
def test_what_the_platforms_words_mean(says: str | Exception, found: Status) -> None:
    assert status_by_spark_submit(Spark(says))("a") == found


@pytest.mark.parametrize("says", [RuntimeError("YARN RM REST API returned HTTP 401 for application a"), OSError("x")])
def test_no_word_is_no_word(says: Exception) -> None:
    with pytest.raises(type(says)):
        status_by_spark_submit(Spark(says))("a")


def test_one_that_has_ended_without_a_word_is_given_time_for_it(store: ManifestStore) -> None:
    """A folder that hosts share shows a file late."""
    found = watch(store, Platform(ENDED))
    for _ in range(MOST_WORDLESS - 1):
        assert "the last word of application_1, which is FAILED" in (found.look() or "")
    store.write(REF, TEXT)
    assert (found.look(), found.lost) == (None, None)


def test_then_it_is_lost_and_says_so(store: ManifestStore) -> None:
    found = watch(store, Platform(ENDED))
    looks = [found.look() for _ in range(MOST_WORDLESS)]
    assert (looks[-1], found.lost) == (None, "FAILED") and all(looks[:-1])
    with pytest.raises(AirflowException, match=r"has ended \(FAILED\), and has not said why") as caught:
        left(store, REF, "application_1", found.lost)
    assert not isinstance(caught.value, AirflowFailException), "a retry begins anew"


def test_one_that_runs_again_was_not_over(store: ManifestStore) -> None:
    """Of a platform that fails over."""
    found = watch(store, Platform(*[ENDED] * (MOST_WORDLESS - 1), RUNNING, *[ENDED] * MOST_WORDLESS))
    looks = [found.look() for _ in range(2 * MOST_WORDLESS - 1)]
    assert all(looks) and found.lost is None


def test_a_tombstone_is_not_the_last_word(store: ManifestStore) -> None:
    """Its writer has failed, and is about to say why: that is told, and a retry helps."""
    found = watch(store, Platform(RUNNING))
    assert store.give_up(REF, "a task has failed")
    assert found.look() == "application_1 is RUNNING"
    store.note_failed(REF, f"{FAILED}OSError: the disk is full")
    assert found.look() is None and not is_good(store, REF)
    with pytest.raises(AirflowException, match="OSError: the disk is full") as caught:
        left(store, REF, "application_1", None)
    assert not isinstance(caught.value, AirflowFailException)


def test_a_tombstone_without_a_word_is_no_reason_to_give_up_retries(store: ManifestStore) -> None:
    store.give_up(REF, "a task has failed")
    with pytest.raises(AirflowException, match="has not said why") as caught:
        left(store, REF, "application_1", "FAILED")
    assert not isinstance(caught.value, AirflowFailException) and not is_good(store, REF)


def test_one_that_was_told_to_stop_is_not_waited_for(store: ManifestStore) -> None:
    store.note_superseded(REF, "another run")
    assert watch(store, Platform(RUNNING)).look() is None
    with pytest.raises(AirflowFailException, match="SupersededError: the attempt was superseded or aborted: another"):
        left(store, REF, "application_1", None)
