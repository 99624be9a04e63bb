"""``--spec``: how the packaged application is handed its specification, by whoever submits it.

| value | |
| --- | --- |
| ``{…}`` | the JSON document itself |
| ``base64:…`` | the same in one word of letters, digits, ``-``, ``_``, ``=``: shells, JSON, YAML leave it as it is |
| ``@/path``, ``@s3://bucket/path`` | a file with it, in what the hosts share, or in an object store |

It has no secret in any of them. The file is the way for long ones: Linux takes 128 KiB in one argument, services less.
"""

from __future__ import annotations

import base64
import binascii

from airflow_kafka_eos.errors import ConfigurationError

ONE_WORD = "base64:"
FILE = "@"


def one_word(text: str) -> str:
    """A specification as a value of ``--spec`` that needs no quotes anywhere."""
    return ONE_WORD + base64.urlsafe_b64encode(text.encode()).decode("ascii")


def read_spec(argument: str) -> str:
    """The specification that a value of ``--spec`` stands for.

    :raises ConfigurationError: the word was cut off or changed on its way, or there is no such file.
    :raises StorageUnavailableError: it cannot be read now.
    """
    if argument.startswith(FILE):
        from airflow_kafka_eos.spark.storage import read_text

        return read_text(argument.removeprefix(FILE))
    if not argument.startswith(ONE_WORD):
        return argument
    word = argument.removeprefix(ONE_WORD)
    try:
        return base64.urlsafe_b64decode(word).decode()
    except (binascii.Error, UnicodeDecodeError) as e:
        raise ConfigurationError(
            f"--spec is no whole word of base64 ({e}): it was cut off or changed on its way, {len(word)} characters "
            "have come",
            remedy="Pass it in one argument as it is; where it is too long for that, use --spec @ with the file",
        ) from e
