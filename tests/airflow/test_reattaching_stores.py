"""prepare and a driver that runs elsewhere: the folder of its manifests is away for a moment, or shows a file late."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kafka_eos.errors import NotFinishedError, StorageUnavailableError
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.operators.application_watch import ApplicationWatch
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.triggers import OVER
from tests.airflow.tries import Tries

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("missing", [True, False], ids=["not there", "unreadable"])
def test_a_note_that_cannot_be_seen_now_fails_no_load_for_good(tries: Tries, missing: bool) -> None:
    deferred = tries.deferred()
    (note,) = tries.manifests.rglob("1.submitted")
    text = note.read_text()
    note.unlink()
    if not missing:
        note.symlink_to("/proc/self/mem")  # EIO, as of a file server that is away
    with pytest.raises((NotFinishedError, StorageUnavailableError)):
        tries.resumed(deferred, {"status": OVER, "lost": None})
    note.unlink(missing_ok=True)
    note.write_text(text)
    tries.go()
    tries.is_over()
    # Airflow has forgotten where the try before has gone on
    assert tries.operator().execute(tries.context())["attempt"] == 1
    assert tries.there.applications() == ["application_1_0001"]


def test_a_retry_that_does_not_see_the_note_opens_a_new_attempt(tries: Tries) -> None:
    deferred = tries.deferred()
    for note in tries.manifests.rglob("1.submitted"):
        note.unlink()
    with pytest.raises(NotFinishedError, match="A retry that sees the note waits on"):
        tries.resumed(deferred, None)
    tries.deferred()
    assert [row.is_undecided for row in tries.attempts()] == [False, True]


def once_away(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The store does not answer whoever reads a kind of file first; returns the kinds that were asked for."""
    asked: set[str] = set()
    real = ManifestStore._read

    def read(store: ManifestStore, ref: AttemptRef, kind: str) -> str | None:
        if kind not in asked:
            asked.add(kind)
            raise StorageUnavailableError(f"{kind} cannot be read now", remedy="Wait")
        return real(store, ref, kind)

    monkeypatch.setattr(ManifestStore, "_read", read)
    return asked


def test_a_store_that_is_away_for_a_moment_fails_no_try_that_waits(
    tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may ask for a retry, in a later go, that begins anew."""
    deferred = tries.deferred()
    tries.go()
    tries.is_over()
    asked = once_away(monkeypatch)
    assert tries.resumed(deferred, {"status": OVER, "lost": None})["attempt"] == 1
    assert {"submitted", "superseded", "json", "once"} <= asked


def test_what_was_taken_over_is_read_again_where_the_store_was_away(
    tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries.go()
    task = tries.operator(wait_in_triggerer=False)
    real = ApplicationWatch.look

    def look(watch: ApplicationWatch) -> str | None:
        waits = real(watch)
        if waits is None:
            once_away(monkeypatch)
        return waits

    monkeypatch.setattr(ApplicationWatch, "look", look)
    assert task.execute(tries.context())["attempt"] == 1


def test_a_store_that_is_away_when_it_would_be_deferred_is_waited_for_here(
    tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise StorageUnavailableError("the store does not answer", remedy="Wait")

    tries.go()
    monkeypatch.setattr(ManifestStore, "submitted", away)
    assert tries.operator().execute(tries.context())["attempt"] == 1


def test_an_application_that_cannot_be_noted_is_waited_for_here(tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise StorageUnavailableError("the store does not answer", remedy="Wait")

    tries.go()
    with monkeypatch.context() as patched:
        patched.setattr(ManifestStore, "note_submitted", away)
        assert tries.operator().execute(tries.context())["attempt"] == 1
    assert tries.operator(wait_in_triggerer=False).execute(tries.context())["attempt"] == 2
