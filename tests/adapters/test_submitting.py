"""What of a failed spark-submit may stand in the ledger."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_kafka_eos.errors import ManifestError
from airflow_kafka_eos.operators.submitting import reason_of


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AirflowException("spark-submit --password hunter2\nERROR hunter2"), "AirflowException: see prepare's log"),
        (KeyboardInterrupt(), "KeyboardInterrupt: see prepare's log"),
        # an author's error may have the name of one of ours
        (AirflowException("RecordError: hunter2"), "AirflowException (RecordError): see prepare's log"),
        (ManifestError("torn", remedy="Clear prepare"), "ManifestError: torn. Clear prepare."),
    ],
)
def test_only_our_own_text_is_kept_and_no_drivers_output(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason
