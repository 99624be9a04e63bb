"""Libraries that not every installation has, and which of this package's extras brings them (docs/adr/0031). No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_kafka_eos.errors import ConfigurationError

_AIRFLOW = "airflow"
#: By module. What Spark's drivers and executors need is always there.
EXTRAS = {
    _AIRFLOW: "airflow",
    "alembic": "ledger",
    "aws_msk_iam_sasl_signer": "msk",
    "confluent_kafka": "confluent",
    "cryptography": "keystores",
    "deltalake": "delta",
    "fastavro": "formats",
    "google.auth": "google",
    "sqlalchemy": "ledger",
    "tabulate": "ledger",
}


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Say which extra is missing, in place of Python's word for it.

    :param what: that imports there, for the error.
    :raises ConfigurationError: one of :data:`EXTRAS` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        name = e.name or ""
        library = _AIRFLOW if name.startswith(f"{_AIRFLOW}.providers") else name
        library = "google.auth" if name == "google" else library  # the package of many distributions
        if library not in EXTRAS:  # a module that an installed library lacks is another trouble
            raise
        raise ConfigurationError(
            f"{what} needs {name}, which is not installed in this Python",
            remedy=f"pip install 'airflow-kafka-eos[{EXTRAS[library]}]'",
        ) from e
