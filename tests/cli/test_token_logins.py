"""Commands log in by tokens as tasks do, by an Airflow connection and without Airflow, and print no more for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = "tests.kafka.token_providers."
#: Of MSK's form, so that the provider's code has something to say; nobody is asked.
EXTRA = {
    "bootstrap.servers": "b-1.x.kafka.eu-west-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
}


def listed(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "AWS_"))}
    ledger = {"AIRFLOW_KAFKA_EOS_LEDGER": f"sqlite:///{home}/ledger.db", "AIRFLOW_HOME": str(home)}
    program = [str(Path(sys.executable).with_name("airflow-kafka-eos"))]
    ledger["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = {"env": kept | ledger | environment, "capture_output": True, "text": True, "timeout": 120}
    subprocess.run([*program, "ledger", "upgrade"], check=True, **done)  # type: ignore[call-overload]
    return subprocess.run(  # type: ignore[no-any-return, call-overload]
        [*program, "transactions", "list", "--output", "json", *arguments], **done
    )


@pytest.mark.parametrize(
    ("name", "allowed", "said"),
    [
        (HERE + "raising", HERE + "raising", "token provider 'tests.kafka.token_providers.raising' (oauth_cb) failed"),
        (HERE + "raising", "", "the [apache_kafka] callback_allowlist is empty"),
        # signed by nobody: AWS is not asked for credentials here
        (None, "", "token provider 'msk' (oauth_cb) failed"),
    ],
)
def test_by_an_airflow_connection(tmp_path: Path, name: str | None, allowed: str, said: str) -> None:
    connection = {"conn_type": "kafka", "extra": EXTRA | ({"oauth_cb": name} if name else {})}
    done = listed(
        tmp_path,
        AIRFLOW_CONN_KAFKA_DEFAULT=json.dumps(connection),
        AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST=allowed,
        AWS_EC2_METADATA_DISABLED="true",
        HOME=str(tmp_path),
    )
    assert said in done.stderr
    assert done.stdout == ""
    assert done.returncode != 0


def test_without_airflow(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    lines = EXTRA | {"oauth_cb": HERE + "raising"}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    done = listed(tmp_path, "--command-config", str(config))
    assert "token provider 'tests.kafka.token_providers.raising' (oauth_cb) failed" in done.stderr
    assert "cr3dential-of-mine" not in done.stderr
    assert done.stdout == ""
