"""Why an application failed, left beside its claim: its own output does not reach Airflow from everywhere (YARN and
Kubernetes in cluster mode), and where it does, only as the last lines of a log."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from airflow_kafka_eos.kafka.settings import is_secret_name, json_object
from airflow_kafka_eos.reasons import noted
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE
from airflow_kafka_eos.spark.handed_over import handed_over
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.spec import SETTINGS_VARIABLE, ApplicationSpec

#: How a claimant's name begins that is this process; a second driver has nothing to say of the first one's attempt.
THIS_PROCESS = f"{socket.gethostname()} process {os.getpid()}, "


def leave(spec_text: str, text: str, environ: Mapping[str, str]) -> None:
    """Leave a text without secrets, where this process has claimed the attempt.

    :param text: as the application prints it, for it is read in the same way.
    :raises Exception: whatever the place raises: it is tried once, behind the error itself.
    """
    spec = ApplicationSpec.from_json(spec_text)
    store = ManifestStore(spec.manifest_dir)
    if not (store.claimant(spec.attempt) or "").startswith(THIS_PROCESS):
        return
    store.note_failed(spec.attempt, noted(text, secrets_of(environ)))


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """What the driver was handed over that nobody may read in its log; a job's own error may have it in its message."""
    return [
        str(value)
        for variable in (SETTINGS_VARIABLE, REGISTRY_VARIABLE)
        for key, value in (json_object(handed_over(environ, variable) or "") or {}).items()
        if is_secret_name(key)
    ]
