"""What a command makes of the handlers that Airflow or a caller has set before it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from airflow_kafka_eos.cli.terminal import to_stderr


@pytest.fixture
def handler() -> Iterator[logging.StreamHandler[io.StringIO]]:
    root = logging.getLogger()
    added, level, kafka = logging.StreamHandler(io.StringIO()), root.level, logging.getLogger("kafka").level
    root.addHandler(added)
    yield added
    root.removeHandler(added)
    root.setLevel(level)
    logging.getLogger("kafka").setLevel(kafka)


def test_warnings_go_to_stderr_wherever_they_went_before(
    handler: logging.StreamHandler[io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    before = handler.stream
    to_stderr()
    logging.getLogger("someone").warning("look at this")
    assert "look at this" in capsys.readouterr().err
    assert before.getvalue() == ""


def test_what_they_went_to_may_be_closed(
    handler: logging.StreamHandler[io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a caller has redirected its output for a while."""
    handler.stream.close()
    to_stderr()
    logging.getLogger("someone").warning("look at this")
    assert "look at this" in capsys.readouterr().err
