"""What not every installation has is named, with the extra of pyproject.toml that brings it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.extras import EXTRAS, needed

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {
    "airflow": "apache-airflow",
    "aws_msk_iam_sasl_signer": "aws-msk-iam-sasl-signer-python",
    "confluent_kafka": "confluent-kafka",
    "google.auth": "google-auth",
}


@pytest.mark.parametrize("library", EXTRAS)
def test_an_extra_brings_what_it_is_said_to(library: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [requirement.partition(">")[0] for requirement in project["optional-dependencies"][EXTRAS[library]]]
    assert DISTRIBUTIONS.get(library, library) in named
    # it would be no extra
    assert DISTRIBUTIONS.get(library, library) not in " ".join(project["dependencies"])


@pytest.mark.parametrize("library", EXTRAS)
def test_what_is_missing_is_named_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    says = f"^loads list needs {library}, which is not"
    with pytest.raises(ConfigurationError, match=says) as caught, needed("loads list"):
        __import__(library)
    assert caught.value.remedy == f"pip install 'airflow-kafka-eos[{EXTRAS[library]}]'"


def test_a_provider_that_is_missing_comes_with_airflow() -> None:
    with pytest.raises(ConfigurationError, match=r"needs airflow\.providers\.nobody, .*\[airflow\]"), needed("it"):
        __import__("airflow.providers.nobody.hooks")


def test_nothing_of_googles_at_all() -> None:
    """The package ``google`` is that of many distributions: without any, its import says so alone."""
    with pytest.raises(ConfigurationError, match=r"needs google, .*\[google\]"), needed("it"):
        raise ModuleNotFoundError("No module named 'google'", name="google")


@pytest.mark.parametrize("module", ["sqlalchemy.no_such_module", "airflow.no_such_module", "no_such_module"])
def test_another_trouble_is_told_as_it_is(module: str) -> None:
    """An installed library of another version, or a module of the author's."""
    with pytest.raises(ModuleNotFoundError), needed("it"):
        __import__(module)


#: As where it is not installed.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "cryptography":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from airflow_kafka_eos.kafka.client.certificates import context_of, identity_in_jks, trusted_in
"""


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ("context_of({'ssl.keystore.location': store})", "ssl.keystore.location"),
        ("identity_in_jks(store, 'x', 'x', 'ssl.keystore.location')", "ssl.keystore.location"),
        ("trusted_in(store, 'x', 'ssl.truststore.location')", "ssl.truststore.location"),
    ],
)
def test_a_keystore_where_nothing_reads_keystores(call: str, key: str, tmp_path: Path) -> None:
    """A Spark host: whoever reads its error knows what to install there."""
    (tmp_path / "store").write_bytes(b"whatever")
    program = f"{BLOCKED}store = {str(tmp_path / 'store')!r}\n{call}\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert f"{key} needs cryptography, which is not installed" in done.stderr, done.stderr
    assert "airflow-kafka-eos[keystores]" in done.stderr
