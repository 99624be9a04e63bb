"""The error tree is an interface: Airflow retries by it, and its text is what a person reads at night."""

from __future__ import annotations

import copy
import pickle

import pytest

from airflow_kafka_eos import errors
from airflow_kafka_eos.errors import KafkaEosError, TerminalError, TransientError

PINNED = [
    "AccessError",
    "BrokerTooOldError",
    "BrokerUnavailableError",
    "CheckFailedError",
    "ConfigurationError",
    "DualWriteError",
    "InDoubtError",
    "InvalidNameError",
    "KafkaEosError",
    "LedgerNotReadyError",
    "LedgerUnavailableError",
    "ManifestError",
    "NotFinishedError",
    "OtherCheckpointError",
    "OtherClusterError",
    "OtherLedgerError",
    "ProducerFencedError",
    "RecordError",
    "RecordsGoneError",
    "RegistryUnavailableError",
    "SandboxError",
    "SchemaRefusedError",
    "SourceUnavailableError",
    "SparkUnavailableError",
    "StoppedError",
    "StorageUnavailableError",
    "StreamError",
    "SupersededError",
    "TerminalError",
    "TooLargeToCopyError",
    "ToolMissingError",
    "TopicError",
    "TransientError",
    "UndecidableError",
]
ALL = [getattr(errors, name) for name in PINNED]
LEAVES = [kind for kind in ALL if kind not in (KafkaEosError, TerminalError, TransientError)]


def test_the_public_names_are_pinned() -> None:
    assert errors.__all__ == PINNED


def test_no_error_of_the_module_is_hidden() -> None:
    found = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, BaseException)}
    assert found == set(PINNED)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda k: k.__name__)
def test_every_error_is_terminal_or_transient_never_both(kind: type[KafkaEosError]) -> None:
    assert issubclass(kind, TerminalError) != issubclass(kind, TransientError)


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.__name__)
def test_every_error_stands_in_the_tree_of_the_docstring(kind: type[KafkaEosError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.__doc__


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.__name__)
def test_an_error_crosses_a_process_border_whole(kind: type[KafkaEosError]) -> None:
    error = kind("it broke", remedy="mend it", load="a/b/c", attempt=3, transactional_id="t")
    error.hint = {"free": "attribute"}  # type: ignore[attr-defined]
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert vars(other) == vars(error)
        assert str(other) == str(error)
        assert other.args == error.args


def test_the_text_says_what_happened_what_to_do_and_of_whom_it_speaks() -> None:
    error = KafkaEosError("it broke.", remedy="Mend it.", load="a/b/c", attempt=0, transactional_id="t")
    assert str(error) == "it broke. Mend it. [load a/b/c, attempt 0, transactional id t]"


def test_the_text_leaves_out_what_is_not_known() -> None:
    assert str(KafkaEosError("it broke")) == "it broke."
    assert str(KafkaEosError("was it renamed?", remedy="Look.")) == "was it renamed? Look."
    assert str(KafkaEosError("it broke", attempt=1)) == "it broke. [attempt 1]"
    assert str(KafkaEosError("it broke", remedy="Mend it")) == "it broke. Mend it."
