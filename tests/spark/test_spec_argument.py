"""--spec of the packaged application: the document, one word, or a file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.airflow_here import NO_DATABASE
from airflow_kafka_eos.spark.application import main
from airflow_kafka_eos.spark.spec_argument import one_word, read_spec


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_one_word_needs_no_quotes_and_says_the_same(text: str) -> None:
    word = one_word(text)
    assert shlex.quote(word) == word and not set(word) & set("'\"\\{}%$# \n")
    assert read_spec(word) == text


def test_a_file_and_the_document_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1.spec").write_text('{"job": "ü"}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "1.spec", f"file://{tmp_path}/1.spec", "1.spec", "./1.spec"):
        assert read_spec(f"@{place}") == '{"job": "ü"}'
    assert read_spec('{"job": "j"}') == '{"job": "j"}'


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("@/nowhere/1.spec", "ConfigurationError: there is no file /nowhere/1.spec"),
        ("@hdfs://host/1.spec", "ConfigurationError: manifest_dir 'hdfs://…' is neither a local path nor"),
        (one_word('{"job": "orders.py"}')[:-3], "ConfigurationError: --spec is no whole word of base64"),
        ("base64:not a word", "ConfigurationError: --spec is no whole word of base64"),
        ("{", "ConfigurationError: the application's document is not JSON"),
    ],
)
def test_what_cannot_be_read_is_the_applications_last_line(
    argument: str, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv(NO_DATABASE, "1")
    assert main(["--spec", argument]) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith(said)


def test_a_document_that_begins_like_a_word_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="3 characters have come"):
        read_spec("base64:abc")
