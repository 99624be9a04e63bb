"""Claims and manifests in an object store: still create-only and whole (rule: one-application-per-attempt; ADR 19)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import fsspec
import pytest
from fsspec.registry import _registry as IMPORTED

from airflow_kafka_eos import manifest
from airflow_kafka_eos.errors import (
    ConfigurationError,
    ManifestError,
    StorageUnavailableError,
    UndecidableError,
)
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.storage import open_place
from airflow_kafka_eos.transaction import PreparedTxnState
from tests.spark.object_store import SECRET, ObjectStore, object_store
from tests.spark.test_manifest_store import EMPTY, LEDGER, REF


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture
def store(server: ObjectStore) -> ManifestStore:
    return ManifestStore(server.folder(), server.filesystem())


def test_what_is_written_is_read_by_another_process(server: ObjectStore) -> None:
    base = server.folder()
    code = (
        "import sys; from tests.spark.test_object_place import *\n"
        "store = ManifestStore(sys.argv[1]); store.claim(REF, 'me'); store.write(REF, manifest.dump(EMPTY))"
    )
    done = subprocess.run([sys.executable, "-c", code, base], env=os.environ | server.environment, timeout=120)
    assert done.returncode == 0
    store = ManifestStore(base, server.filesystem())
    assert (store.read(REF), store.claimant(REF)) == (EMPTY, "me")
    assert store.path(REF).startswith(f"{base}/{LEDGER}/airflow/orders/")


def test_an_application_reads_its_specification_with_its_own_login(server: ObjectStore) -> None:
    base = server.folder()
    place = ManifestStore(base, server.filesystem()).note_spec(REF, '{"job": "ü"}')
    assert place.startswith(base)
    code = "import sys; from airflow_kafka_eos.spark.spec_argument import *; print(ascii(read_spec(sys.argv[1])))"
    for argument, wanted in ((f"@{place}", ascii('{"job": "ü"}')), (f"@{base}/none.spec", "there is no file")):
        done = subprocess.run(
            [sys.executable, "-c", code, argument], env=os.environ | server.environment, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        assert wanted in done.stdout + done.stderr, done.stderr


def test_of_many_that_claim_at_once_one_wins(server: ObjectStore) -> None:
    base, together = server.folder(), threading.Barrier(8)

    def claim(number: int) -> bool:
        store = ManifestStore(base, server.filesystem())
        together.wait(60)
        try:
            store.claim(REF, f"driver {number}")
        except UndecidableError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(claim, range(8)))
    assert won.count(True) == 1
    assert ManifestStore(base, server.filesystem()).claimant(REF) == f"driver {won.index(True)}"


def test_a_manifest_is_never_replaced_nor_one_that_was_given_up(store: ManifestStore) -> None:
    store.write(REF, manifest.dump(EMPTY))
    with pytest.raises(ManifestError):
        store.write(REF, manifest.dump(EMPTY))
    assert (store.read(REF), store.give_up(REF, "late")) == (EMPTY, False)
    other = replace(REF, attempt=2)
    assert store.give_up(other, "a task failed")
    with pytest.raises(ManifestError):
        store.write(other, manifest.dump(replace(EMPTY, attempt=other)))
    with pytest.raises(ManifestError, match="a task failed"):
        store.read(other)


def test_the_identity_of_scope_load_is_asked_for_once(store: ManifestStore) -> None:
    answers = [PreparedTxnState(7, 0), PreparedTxnState(7, 1)]
    assert store.identity(REF, lambda: answers.pop(0)) == store.identity(REF, lambda: answers.pop(0))
    assert len(answers) == 1


@pytest.mark.parametrize("name", ["a/b", "..", "%2E", "?versionId=1", "#", "*", "ü [x]", "a::b"])
def test_any_name_can_be_written_and_read(store: ManifestStore, name: str) -> None:
    ref = AttemptRef(LoadIdentity(name, name, name), LEDGER, 1)
    store.claim(ref, "me")
    store.write(ref, manifest.dump(replace(EMPTY, attempt=ref, ran_again=False)))
    written = store.read(ref)
    assert written.attempt == ref and store.writers_left(written)
    store.note_ran_once(ref)
    assert not store.writers_left(written)


def test_an_answer_that_is_lost_is_no_other_claimant(server: ObjectStore, store: ManifestStore) -> None:
    """The library sends a request again whose answer was lost, and is told that the object is there: its own."""
    server.lost_answers = 1
    try:
        assert store._place.create("once", "mine")
    finally:
        server.lost_answers = 0
    assert not store._place.create("once", "another's")
    assert store._place.read("once") == "mine"


def test_a_store_that_replaces_objects_is_refused(server: ObjectStore, store: ManifestStore) -> None:
    server.forgets_conditions = True
    try:
        with pytest.raises(ConfigurationError, match="replaces objects"):
            store.claim(REF, "me")
    finally:
        server.forgets_conditions = False
    assert store.claimant(REF) is None


def test_a_library_that_only_looks_before_it_writes_is_refused() -> None:
    """fsspec's own fallback: two that look at once both write, and no probe by one process would show it."""
    with pytest.raises(ConfigurationError, match="cannot create an object only where there is none"):
        open_place("s3://bucket/folder", fsspec.filesystem("memory"))


def test_no_access_is_final_and_a_store_that_does_not_answer_is_not(server: ObjectStore) -> None:
    import s3fs

    missing = ManifestStore("s3://no-such-bucket/x", server.filesystem())
    with pytest.raises(ConfigurationError, match="no-such-bucket"):
        missing.claim(REF, "me")
    config = {"retries": {"max_attempts": 1}, "connect_timeout": 1}
    gone = s3fs.S3FileSystem(endpoint_url="http://127.0.0.1:1", key="key", secret=SECRET, config_kwargs=config)
    gone.retries = 1
    for action in (ManifestStore("s3://b/x", gone).read, lambda ref: ManifestStore("s3://b/x", gone).claim(ref, "me")):
        with pytest.raises(StorageUnavailableError, match="run it again") as caught:
            action(REF)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("base", ["s3://bucket/a:b", "gs://bucket", "s3://bucket.with-dots_1/a b/ü"])
def test_a_url_without_a_login_is_one(base: str) -> None:
    assert open_place(base, fsspec.filesystem("s3", anon=True)).base == base


def test_a_container_of_an_account_is_no_login() -> None:
    base = "abfs://container@account.dfs.core.windows.net/folder"
    assert open_place(base, fsspec.filesystem("s3", anon=True)).base == base


@pytest.mark.parametrize("login", [f"key:{SECRET}", f"key:/{SECRET}", f"{SECRET}/{SECRET}"])
def test_prepare_takes_no_login_for_an_airflow_connection(login: str) -> None:
    """The error would name the connection; and the driver gets what stands behind the @ only."""
    from airflow_kafka_eos.operators.submitting import manifest_store

    with pytest.raises(ConfigurationError, match="names a login") as caught:
        manifest_store(f"s3://{login}@bucket/folder")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("s3:///folder", "has no bucket"),
        ("s3://bucket/a?b", "has a \\? or a #"),
        ("s3://conn@bucket/folder", "names a login or an Airflow connection"),
        (f"s3://key:{SECRET}@bucket/folder", "names a login"),
        (f"s3://key:{SECRET}/{SECRET}@bucket/folder", "names a login"),  # secrets have slashes
        (f"s3://key:/{SECRET}@bucket/folder", "names a login"),
        (f"s3://key:{SECRET}/folder", "names a login"),
        (f"S3a://{SECRET}/{SECRET}@bucket/folder", "names a login"),
        (f"s3://key:[{SECRET}@bucket/folder", "names a login"),  # urlsplit refuses it, and says the text
        (f"s3://key:{SECRET}?#@bucket/folder", "names a login"),
        (f"abfs://account:{SECRET}@account.dfs.core.windows.net/folder", "names a login"),
        (f"abfs://container@account.dfs.core.windows.net/{SECRET}@x", "names a login"),
        (f"s3://bucket/folder?sig={SECRET}", "has a \\? or a #"),
        (f"ftp://user:{SECRET}/x@host/folder", "neither a local path"),
        (f"ftp://user:{SECRET}@host/folder", "neither a local path"),
    ],
)
def test_a_url_that_cannot_do_is_named_without_its_secrets(base: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"manifest_dir .*{says}") as caught:
        ManifestStore(base)
    assert SECRET not in str(caught.value)


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for scheme in ("s3", "s3a"):  # fsspec keeps what was imported before
        monkeypatch.delitem(IMPORTED, scheme, raising=False)
    with pytest.raises(ConfigurationError, match="Install s3fs"):
        ManifestStore("s3://bucket/folder")


def test_prepare_and_decide_read_with_the_login_of_an_airflow_connection(server: ObjectStore) -> None:
    """The Spark driver is told the location without it: it has no Airflow to ask."""
    from airflow.sdk.io import attach

    from airflow_kafka_eos.operators.submitting import manifest_store

    folder = server.folder()
    ManifestStore(folder, server.filesystem()).write(REF, manifest.dump(EMPTY))
    attach("s3", conn_id="lake", fs=server.filesystem())
    found = manifest_store(folder.replace("s3://", "s3://lake@"))
    assert (found.base, found.read(REF)) == (folder, EMPTY)
