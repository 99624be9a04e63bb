"""What a job with a cursor returns beside its data: where its range ends, noted before anything is written.

Rule: range-is-pinned. The note is create-only and of one attempt, so of the one application that has claimed it;
Airflow takes it into the ledger with the manifest, or for the next attempt.
"""

from __future__ import annotations

from typing import Any

from airflow_kafka_eos import position
from airflow_kafka_eos.arguments import shown
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.spec import ApplicationSpec


def without_until(found: Any, spec: ApplicationSpec, store: ManifestStore) -> Any:
    """The data, of what a job has returned.

    :param store: is told the end that the job has chosen, where the range had none.
    :raises ConfigurationError: the job returns no end where it has to, one before its beginning, or another one than
        it was called with.
    """
    if spec.range is None:
        return found
    since, given = spec.range["since"], spec.range["until"]
    data, until = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if until is None and given is None:
        raise ConfigurationError(
            f"the job {spec.job} was called with until=None, and does not return where its range ends",
            remedy="Return two things: the data, and until; or give the cursor a source",
            **spec.options.attempt.ids,
        )
    if until is None:
        return data
    until = position.checked(until, "the job's until")
    if given is None:
        position.is_behind(until, since, "the job's range")
        store.note_until(spec.options.attempt, position.dump(until))
    elif not position.is_same(given, until, "the job's range"):
        raise ConfigurationError(
            f"the job {spec.job} was called with until={shown(given)}, and returns {shown(until)}",
            remedy="What was chosen once is read by every attempt: where until is not None, read up to it",
            **spec.options.attempt.ids,
        )
    return data
