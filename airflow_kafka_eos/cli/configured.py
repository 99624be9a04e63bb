"""Section ``[kafka_eos]`` for commands; see :mod:`airflow_kafka_eos.config`. What no argument says, it says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow_kafka_eos import config
from airflow_kafka_eos.cli.airflow_options import airflow_option


def setting(key: str, given: Any = None) -> Any:
    """As :func:`airflow_kafka_eos.config.setting`; None for an option that may be left out, and is."""
    return given if given is not None else config.value_of(key, airflow_option(config.SECTION, key))


def or_setting(key: str, read: Callable[[str], Any], made: Callable[[Any], Any] = lambda value: value) -> Any:
    """For argparse's ``type``, beside ``default=""``: the argument that was given, else what the section says.

    argparse hands a text that is the default to ``type`` too, and only where the argument is missing: the section is
    read by those commands alone that want it.

    :param read: makes the value of what was given.
    :param made: makes it of the option's value.
    """

    def value(text: str) -> Any:
        return read(text) if text else made(setting(key))

    value.__name__ = getattr(read, "__name__", key)  # argparse's "invalid … value"
    return value


def in_ms(duration: timedelta) -> int:
    """Milliseconds."""
    return round(duration / timedelta(milliseconds=1))


def default_of(key: str) -> str:
    """For the help."""
    default = config.OPTIONS[key].default
    return f"default: {key} of section [{config.SECTION}] in Airflow's configuration, else {default}"
