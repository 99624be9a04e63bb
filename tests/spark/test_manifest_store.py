"""Claims and manifests are create-only and whole, and no two loads share a file (rule: one-application-per-attempt)."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_kafka_eos import manifest
from airflow_kafka_eos.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    InvalidNameError,
    ManifestError,
    UndecidableError,
)
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.transaction import PreparedTxnState

LEDGER = "0123456789"
REF = AttemptRef(LoadIdentity("airflow", "orders", "2013-01-01"), LEDGER, 1)
EMPTY = Manifest(
    REF, "2013-01-01T00:00:00+00:00", "arrow", TransactionScope.TASK, False, 60_000, "x", {}, ()
)

_NAME = st.sampled_from([".", "..", "/", "a/b", "a.b", "~", "%2E", "a%2Fb", " "]) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12
)
_REF = st.builds(
    AttemptRef, st.builds(LoadIdentity, _NAME, _NAME, _NAME), st.just(LEDGER), st.integers(1, 12)
)


@given(_REF, _REF)
def test_two_attempts_never_share_a_file_and_none_leaves_the_folder(a: AttemptRef, b: AttemptRef) -> None:
    store = ManifestStore("/base")
    assert (store.path(a) == store.path(b)) == (a == b)
    assert os.path.normpath(store.path(a)).startswith("/base/")
    assert len(Path(store.path(a)).relative_to("/base").parts) == 5


@settings(max_examples=20)
@given(_REF)
def test_any_name_can_be_written_and_read(ref: AttemptRef) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ManifestStore(folder)
        store.claim(ref, "me")
        text = manifest.dump(replace(EMPTY, attempt=ref))
        store.write(ref, text)
        assert store.read(ref).attempt == ref


def test_the_identity_of_scope_load_is_asked_for_once_and_remembered(tmp_path: Path) -> None:
    # planning may ask twice; a second InitProducerId would end what the first one's tasks write
    # (rule: one-init-per-transaction)
    answers = [PreparedTxnState(7, 0), PreparedTxnState(7, 1)]
    assert ManifestStore(str(tmp_path)).identity(REF, lambda: answers.pop(0)) == PreparedTxnState(7, 0)
    assert ManifestStore(str(tmp_path)).identity(REF, lambda: answers.pop(0)) == PreparedTxnState(7, 0)
    assert len(answers) == 1


def test_an_identity_that_was_asked_for_and_lost_is_not_asked_for_again(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    with pytest.raises(BrokerUnavailableError):
        store.identity(REF, lambda: _raise(BrokerUnavailableError("no answer")))
    with pytest.raises(UndecidableError, match="was not finished") as caught:
        store.identity(REF, lambda: PreparedTxnState(7, 1))
    assert caught.value.attempt == 1


def _raise(error: Exception) -> NoReturn:
    raise error


def test_a_second_claim_is_refused_and_names_the_first(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    store.claim(REF, "driver one")
    with pytest.raises(UndecidableError, match="driver one") as caught:
        store.claim(REF, "driver two")
    assert caught.value.attempt == 1
    assert store.claimant(REF) == "driver one"


def test_a_manifest_is_never_replaced(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    store.write(REF, manifest.dump(EMPTY))
    with pytest.raises(ManifestError):
        store.write(REF, "other")
    assert store.read(REF) == EMPTY


def test_after_giving_up_no_manifest_can_follow(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    assert store.give_up(REF, "a task failed")
    with pytest.raises(ManifestError):
        store.write(REF, manifest.dump(EMPTY))
    with pytest.raises(ManifestError, match="a task failed"):
        store.read(REF)


def test_once_writing_was_tried_nothing_may_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # also when the writing failed, for nobody knows what a reader has seen
    store = ManifestStore(str(tmp_path))
    link = os.link

    def fail(source: str | Path, target: str | Path) -> None:
        if str(target).endswith(".json"):
            raise OSError(5, "Input/output error")
        link(source, target)

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(ConfigurationError, match="Input/output"):
        store.write(REF, manifest.dump(EMPTY))
    monkeypatch.undo()
    assert not store.give_up(REF, "too late")
    with pytest.raises(ManifestError, match="no manifest"):
        store.read(REF)


def test_a_crash_while_writing_leaves_no_manifest(tmp_path: Path) -> None:
    # the process ends when half of the text is on the disk
    child = os.fork()
    if child == 0:
        os.fsync = lambda fd: os._exit(9)
        ManifestStore(str(tmp_path)).write(REF, manifest.dump(EMPTY))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with pytest.raises(ManifestError, match="no manifest"):
        ManifestStore(str(tmp_path)).read(REF)
    ManifestStore(str(tmp_path)).write(REF, manifest.dump(EMPTY))


def test_a_missing_manifest_says_that_prepare_must_run(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="prepare must run"):
        ManifestStore(str(tmp_path)).read(REF)


def test_others_may_read_what_the_driver_wrote(tmp_path: Path) -> None:
    store = ManifestStore(tmp_path.as_uri())
    store.write(REF, manifest.dump(EMPTY))
    umask = os.umask(0)
    os.umask(umask)
    assert os.stat(store.path(REF)).st_mode & 0o777 == 0o666 & ~umask
    assert not [n for n in os.listdir(os.path.dirname(store.path(REF))) if n.startswith(".")]


@pytest.mark.parametrize("base", ["relative/folder", "file://otherhost/folder", "hdfs://host/folder", "memory://a", ""])
def test_what_is_neither_an_absolute_path_nor_in_an_object_store_is_refused(base: str) -> None:
    with pytest.raises(ConfigurationError, match="manifest_dir"):
        ManifestStore(base)


def test_a_name_too_long_for_a_file_is_refused() -> None:
    with pytest.raises(InvalidNameError, match="Shorten the key"):
        ManifestStore("/base").path(AttemptRef(LoadIdentity("a", "b", "ä" * 60), LEDGER, 1))
