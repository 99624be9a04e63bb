"""What commands share at a terminal: output, exit codes, who is there, questions, log lines on stderr, Ctrl-C."""

from __future__ import annotations

import argparse
import json
import logging
import selectors
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from types import FrameType
from typing import Any

from airflow_kafka_eos.cli.durations import seconds
from airflow_kafka_eos.errors import (
    AccessError,
    ConfigurationError,
    InDoubtError,
    KafkaEosError,
    LedgerNotReadyError,
    ManifestError,
    TooLargeToCopyError,
    TransientError,
    UndecidableError,
)

OK = 0
#: something is wrong with a load or a transaction: in doubt, not decidable, hanging, left open
FOUND = 1
#: what was asked, or how it is set up: arguments, settings, logins, permissions
USAGE = 2
#: the same call may succeed later
TRANSIENT = 3

EXPLAINED = (
    "exit codes: 0 fine; 1 something is wrong with a load or transaction (in doubt, refused by a rule, hanging, left "
    "open); 2 arguments, settings or permissions; 3 not now: run it again"
)


def code_of(error: KafkaEosError) -> int:
    """The exit code of an error that ended a command."""
    if isinstance(error, LedgerNotReadyError):
        return USAGE  # to run it again changes nothing: it is another ledger, or nobody has made it
    if isinstance(error, TransientError):
        return TRANSIENT
    found = (InDoubtError, UndecidableError, ManifestError, TooLargeToCopyError)
    return FOUND if isinstance(error, found) else USAGE


def worst(codes: list[int]) -> int:
    """One code for several things: what a person must look at counts most, then what is to be tried again."""
    for code in (FOUND, USAGE, TRANSIENT):
        if code in codes:
            return code
    return OK


def add_output(command: argparse.ArgumentParser) -> None:
    """The argument that says for whom."""
    command.add_argument("--output", choices=("table", "json"), default="table", help="for people, or for programs")


def add_deadline(command: argparse.ArgumentParser, default: float) -> None:
    """The argument that ends a command's waits."""
    command.add_argument(
        "--deadline", type=seconds, default=default, metavar="SECONDS",
        help=f"how long to try: seconds, or such as 15m; default {default:g}",
    )  # fmt: skip


def show(arguments: argparse.Namespace, document: Any, for_people: Any = None, *, nothing: str = "") -> bool:
    """Print a command's answer: as JSON for programs, for people a table of rows, or a line for each field.

    :param for_people: what people are shown in the document's place.
    :param nothing: what they read where there are no rows.
    :return: whether it is read by people, who may be told more.
    """
    if arguments.output == "json":
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return False
    shown = document if for_people is None else for_people
    print(as_lines(shown) if isinstance(shown, Mapping) else as_table(shown) or nothing)
    return True


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first row's keys are the head. What is not known is a dash."""
    from tabulate import tabulate  # for people only

    if not rows:
        return ""
    shown = [
        {key.replace("_", " "): "-" if v in (None, "") else _plain(v) for key, v in row.items()} for row in rows
    ]
    return str(tabulate(shown, headers="keys", tablefmt="simple", disable_numparse=True))


def as_lines(document: Mapping[str, Any]) -> str:
    """One thing, a line for each field; what is not known is left out."""
    return "\n".join(f"{key.replace('_', ' '):16} {_plain(value)}" for key, value in document.items() if value)


def _plain(value: Any) -> Any:
    """Without the name of its class, which only JSON leaves out by itself."""
    return value.value if isinstance(value, Enum) else value


def short(text: str, most: int) -> str:
    """The first so many characters of a cell that may be long; "…" where it goes on."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def words_of(row: Mapping[str, Any]) -> dict[str, str | None]:
    """A row's load as a shell takes it: `loads show NAME KEY`."""
    return {field: None if row[field] is None else shlex.quote(row[field]) for field in ("name", "key")}


def utc(ms: int) -> str | None:
    """Milliseconds since the epoch as text, as they are where no calendar has them; None for what has not happened."""
    if ms < 0:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def person() -> str:
    """Who runs the command, for the ledger."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()} (airflow-kafka-eos)"


def add_yes(command: argparse.ArgumentParser) -> None:
    """The argument that answers beforehand."""
    command.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Go on only if a person at a terminal, or ``--yes``, says so. Commands that end or give up something ask first.

    :raises ConfigurationError: nobody can be asked, or the answer was no. Nothing was done.
    """
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{question} There is no terminal to ask at, so nothing was done", remedy="Add --yes if you are sure"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigurationError("Not confirmed, so nothing was done", remedy="Answer y, or add --yes")


def say_what_would_fail(arguments: argparse.Namespace) -> None:
    """Where there is nothing to ask about: a job of cron would pass each trial, and fail when it is needed."""
    if not (arguments.yes or sys.stdin.isatty()):
        say(
            "airflow-kafka-eos: there is no terminal: when something is to be done, this command will ask and do "
            "nothing. Add --yes"
        )


def say(text: str) -> None:
    """To people beside the answer, on stderr: stdout is for the answer alone, which a program may read."""
    print(text, file=sys.stderr)


def say_hidden(hidden: AccessError | None) -> int:
    """That ACLs may have limited a listing. What is shown stands; the exit code is that of a missing right."""
    if hidden is None:
        return OK
    say(f"airflow-kafka-eos: THIS MAY NOT BE ALL: {hidden}")
    return code_of(hidden)


class _Stderr:
    """``sys.stderr`` as it is at the moment of writing."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def to_stderr() -> None:
    """Warnings go to stderr, and the Kafka client's say nothing that our errors do not.

    Call it behind each import of Airflow: it sends every library's INFO to stdout.
    """
    root = logging.getLogger()
    root.setLevel(max(root.level, logging.WARNING))
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler and handler.stream is not sys.stderr:
            # not by setStream, which flushes what it had before: that may be closed
            handler.stream = _Stderr()


_AGAIN_S = 0.05


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends a command wherever it is, where Python's own way to handle SIGINT is in place.

    kafka-python's event loop keeps what is raised inside of its steps as their result, or logs it; KeyboardInterrupt
    too. Ctrl-C at such a moment (seen: while a connection is made) was lost, and the command went on to its deadline.
    So it is held back until the loop waits for the network.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _would_be_lost(frame):
        later = threading.Timer(_AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number))
        later.daemon = True
        later.start()
        return
    raise KeyboardInterrupt


def _would_be_lost(frame: FrameType | None) -> bool:
    """Inside of the event loop, and not where it waits."""
    # its other methods are called by steps
    if frame is None or (frame.f_code.co_name, frame.f_code.co_filename) == ("select", selectors.__file__):
        return False
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("kafka.net."):
            return True
        frame = frame.f_back
    return False
