"""Logins to Kafka that a Spark Connect server's executors have by themselves: one file each, named by its id.

What a client sends stands in plans, which the server's UI and its logs may show, and which every user of the server
can read. So of a Kafka connection only what is known to be no secret is sent, and the id of the login. An executor
finds the rest in ``<folder>/<id>.json``, a JSON object of librdkafka's keys, on its own host: a mounted secret, or a
file. The folder is that of the environment variable ``AIRFLOW_KAFKA_EOS_LOGINS``, else :data:`FOLDER`.
"""

from __future__ import annotations

import re
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings, json_object
from airflow_kafka_eos.kafka.producer.options import SETTING_NAMES

FOLDER_VARIABLE = "AIRFLOW_KAFKA_EOS_LOGINS"
FOLDER = "/etc/airflow-kafka-eos/logins"
#: It becomes a file's name on another host.
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}", re.ASCII)


def check_login_id(login: str) -> None:
    """
    :raises ConfigurationError: it cannot be the name of a file.
    """
    if _ID.fullmatch(login) is None:
        raise ConfigurationError(
            f"the Kafka login {login!r} cannot be the name of a file on the Spark Connect server",
            remedy='Name it in the extra of the Spark connection: {"kafka_logins": {"<kafka_conn_id>": "<login>"}}, of '
            "letters, digits, - _ and .",
        )


#: What a plan may show: how to connect and to write, without as whom. Any other name stays in the worker: a new secret
#: key must not need a new line here.
SENT = frozenset({
    *SETTING_NAMES, "bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.kerberos.service.name",
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location",
    "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification", "retries", "retry.backoff.ms",
    "socket.connection.setup.timeout.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "connections.max.idle.ms",
    "socket.keepalive.enable", "broker.address.family", "metadata.max.age.ms", "queue.buffering.max.messages",
    "batch.num.messages",
})  # fmt: skip


def split(settings: KafkaSettings) -> tuple[dict[str, str], list[str]]:
    """What of a connection may be sent, and the names of what may not."""
    texts = settings.texts
    sent = {key: value for key, value in texts.items() if key in SENT}
    return sent, sorted(set(texts) - set(sent))


def settings_here(
    sent: Mapping[str, str], login: str, needed: list[str], environ: Mapping[str, str]
) -> KafkaSettings:
    """The settings that an executor writes with: what was sent, and above it what its host has under the login's id.

    :param needed: names of what was not sent. Where there are none, the file need not be there.
    :raises ConfigurationError: there is no such file, it cannot be read, everybody may read it, or it is no JSON
        object. No text of it is shown.
    """
    check_login_id(login)
    path = Path(environ.get(FOLDER_VARIABLE) or FOLDER) / f"{login}.json"
    found = _read(path)
    if found is None and needed:
        raise ConfigurationError(
            f"the Kafka login {login!r} is not on {socket.gethostname()}, where a Spark executor runs: there is no "
            f"file {path}, and {', '.join(needed)} of the Airflow connection are not sent to a Spark Connect server",
            remedy=f"Put them there, a JSON object of librdkafka's keys, on every host of the server's executors; "
            f"another folder is named by {FOLDER_VARIABLE} in their environment (docs/spark-connect.md)",
        )
    return KafkaSettings.from_mapping({**sent, **(found or {})})


def _read(path: Path) -> dict[str, object] | None:
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(Path(file.name).stat().st_mode)
            text = file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror or type(e).__name__ if isinstance(e, OSError) else "it is not UTF-8"
        raise _wrong(
            path, f"cannot be read ({why})", "Let the user read it that the executors run as"
        ) from None
    if mode & stat.S_IRWXO:
        remedy = "chmod 600; for a secret volume of Kubernetes, set defaultMode: 0440"
        raise _wrong(path, f"may be read or written by everybody (mode {mode:04o})", remedy)
    if (found := json_object(text)) is None:
        raise _wrong(
            path, "is no JSON object", "Write librdkafka's keys into it, as in an Airflow connection's extra"
        )
    return found


def _wrong(path: Path, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        f"the file {path} with a Kafka login {problem}, on {socket.gethostname()}", remedy=remedy
    )
