"""Airflow's configuration for commands, read as Airflow reads it, without importing Airflow: that takes seconds.

What only Airflow itself can tell (a command that prints a value, a secrets backend, a file that is not as it should be)
it is asked for. ``tests/cli/test_airflow_options.py`` holds both readings against each other.

Section ``[kafka_eos]`` (:mod:`airflow_kafka_eos.config`) gives the arguments of commands their defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from configparser import ConfigParser, Error
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from airflow_kafka_eos import config
from airflow_kafka_eos.cli.durations import text_of
from airflow_kafka_eos.cli.terminal import to_stderr


class AskAirflow(Exception):
    """Only Airflow can tell."""


def airflow_option(section: str, key: str, default: str = "") -> str:
    """An option's text; the default where neither the environment nor ``airflow.cfg`` has it."""
    try:
        found = without_airflow(section, key)
    except AskAirflow:
        found = _by_airflow(section, key)
    return default if found is None else found


def without_airflow(section: str, key: str) -> str | None:
    """The same; None where nobody has set it.

    :raises AskAirflow: it cannot be told without Airflow.
    """
    variable = f"AIRFLOW__{section.upper()}__{key.upper()}"
    if variable in os.environ:
        return expanded(os.environ[variable])
    settings = _file(config_file(), _stamp(config_file()))
    if {f"{variable}_CMD", f"{variable}_SECRET"} & os.environ.keys():
        raise AskAirflow
    if any(settings.has_option(section, f"{key}_{how}") for how in ("cmd", "secret")):
        raise AskAirflow
    try:
        return expanded(settings.get(section, key)) if settings.has_option(section, key) else None
    except Error:  # a % that Airflow's own reading does not like either
        raise AskAirflow from None


def airflow_home() -> str:
    """Airflow's folder."""
    return expanded(os.environ.get("AIRFLOW_HOME", "~/airflow"))


def config_file() -> Path:
    """``airflow.cfg``, wherever it is; it may be missing."""
    named = os.environ.get("AIRFLOW_CONFIG")
    return Path(airflow_home(), "airflow.cfg") if named is None else Path(expanded(named))


def expanded(text: str) -> str:
    """With environment variables and ``~`` filled in, until nothing changes, as Airflow does."""
    while (filled := os.path.expanduser(os.path.expandvars(text))) != text:
        text = filled
    return text


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        seen = path.stat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise AskAirflow from None
    return (seen.st_mtime_ns, seen.st_size)


@cache
def _file(path: Path, stamp: tuple[int, int] | None) -> ConfigParser:
    settings = ConfigParser()
    settings.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        if stamp is not None:
            settings.read(path)
        strange = settings.has_option("core", "airflow_home") or _is_testing(settings)
    except (Error, OSError, ValueError):
        raise AskAirflow from None
    if strange:  # either changes where everything else is read
        raise AskAirflow
    return settings


def _is_testing(settings: ConfigParser) -> bool:
    mode = os.environ.get("AIRFLOW__CORE__UNIT_TEST_MODE") or settings.get("core", "unit_test_mode", fallback="")
    return (mode or "").strip().lower() not in ("", "f", "false", "0")


def _by_airflow(section: str, key: str) -> str | None:
    from airflow.providers.common.compat.sdk import conf

    to_stderr()
    found = conf.get(section, key, fallback=None)
    return None if found is None else str(found)


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


def default_of(key: str, unset: str = "") -> str:
    """For the help.

    :param unset: what is taken where an option has no default of its own.
    """
    default = config.OPTIONS[key].default
    value = config.value_of(key, default)
    if isinstance(value, timedelta):
        default = text_of(in_ms(value))
    return f"default: {key} of section [{config.SECTION}] in Airflow's configuration, else {default or unset}"
