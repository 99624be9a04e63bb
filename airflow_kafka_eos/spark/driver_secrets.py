"""What the Spark driver is handed over by its environment: the text itself, or the name of a file with it.

The command line reads the same variables, so that it stands beside a streaming query's service as that is configured.

``AIRFLOW_KAFKA_EOS_KAFKA`` holds a text; ``AIRFLOW_KAFKA_EOS_KAFKA_FILE`` names a file. The file is for cluster deploy
mode, where settings of Spark that set a driver's environment show in its UI: a secret mounted by Kubernetes, or a file
that YARN has localized. A path that is not absolute is one in the driver's working folder.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kafka_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings

#: The environment variable of the Spark driver with the Kafka settings and their secrets (``KafkaSettings.to_json``).
SETTINGS_VARIABLE = "AIRFLOW_KAFKA_EOS_KAFKA"
#: The same of a streaming query's driver, with the ledger's URL, which may have a password in it.
LEDGER_VARIABLE = "AIRFLOW_KAFKA_EOS_LEDGER"
FILE_SUFFIX = "_FILE"


def handed_over(environ: Mapping[str, str], variable: str) -> str | None:
    """The text of a variable, or of the file that it names; None without either.

    :raises ConfigurationError: both are set, or the file cannot be read, or everybody may read it. No text is shown.
    """
    text, name = environ.get(variable), environ.get(variable + FILE_SUFFIX)
    if not name:
        return text or None
    if text:
        raise ConfigurationError(
            f"{variable} and {variable}{FILE_SUFFIX} are both set in the environment",
            remedy="Set one of them",
        )
    try:
        with open(Path(name), encoding="utf-8") as file:
            mode = stat.S_IMODE(Path(file.name).stat().st_mode)
            if mode & stat.S_IRWXO:
                raise ConfigurationError(
                    f"{variable}{FILE_SUFFIX} names {name}, which everybody may read or write (mode {mode:04o})",
                    remedy="chmod 600; for a secret volume of Kubernetes, set defaultMode: 0440",
                )
            return file.read()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigurationError(
            f"{variable}{FILE_SUFFIX} names {name}, which cannot be read on this machine "
            f"({e.strerror or type(e).__name__ if isinstance(e, OSError) else 'it is not UTF-8'})",
            remedy="Mount it, or ship it to the Spark driver with files=…, and let the user of this process read it",
        ) from e


def kafka_handed_over(environ: Mapping[str, str]) -> KafkaSettings | None:
    """The Kafka settings of the environment; None without any.

    :raises ConfigurationError: see :func:`handed_over` and ``KafkaSettings.from_json``; it names the variable.
    """
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings

    text = handed_over(environ, SETTINGS_VARIABLE)
    if text is None:
        return None
    try:
        return KafkaSettings.from_json(text)
    except ConfigurationError as e:
        name = environ.get(SETTINGS_VARIABLE + FILE_SUFFIX)
        e.message = f"{f'{SETTINGS_VARIABLE}{FILE_SUFFIX}, {name}' if name else SETTINGS_VARIABLE}: {e.message}"
        raise
