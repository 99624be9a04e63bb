"""The command line: ``airflow-kafka-eos``. Each command's file adds its own arguments and runs them.

Nothing is imported here that takes time: Ctrl-C may come at any moment, and ends without a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

PROG = "airflow-kafka-eos"
#: as a shell has it for what SIGINT and SIGPIPE end
_INTERRUPTED, _NOBODY_READS = 130, 141


def main(argv: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; prints errors of ours as one line and returns the exit code (see :mod:`.terminal`).

    :param prog: what the program is called in its help.
    """
    try:
        from airflow_kafka_eos.cli.terminal import interruptible

        with interruptible():
            return _run(list(sys.argv[1:] if argv is None else argv), prog)
    except KeyboardInterrupt:
        _say("interrupted; what was under way may have been done: look before you run it again")
        return _INTERRUPTED
    except BrokenPipeError:
        _write_no_more()
        return _NOBODY_READS


def _run(argv: list[str], prog: str) -> int:
    from airflow_kafka_eos.cli.terminal import TRANSIENT, USAGE, code_of, to_stderr
    from airflow_kafka_eos.errors import KafkaEosError

    try:
        to_stderr()
        with suppress(AttributeError):  # of a stream that is no file
            # a name that the terminal cannot show is no reason to show nothing
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        _refuse_what_is_no_text(argv)
        arguments = parser(prog).parse_args(argv)
        code = int(arguments.run(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where it can still be said that it failed
        return code
    except KafkaEosError as e:
        # a driver's message or the tail of a broker's log may have several lines
        lines = [line.strip() for line in f"{type(e).__name__}: {e}".splitlines()]
        _say(" | ".join(filter(None, lines)))
        return code_of(e)
    except BrokenPipeError:
        raise
    except OSError as e:  # a file that cannot be written, a full disk behind the answer
        _say(f"{type(e).__name__}: {e}")
        _write_no_more()
        return TRANSIENT if isinstance(e, (ConnectionError, TimeoutError)) else USAGE


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """All commands."""
    from airflow_kafka_eos import __version__
    from airflow_kafka_eos.cli import (
        broker,
        cleanup,
        demo,
        doctor,
        ids,
        ledger,
        loads,
        spark_archive,
        transactions,
    )
    from airflow_kafka_eos.cli.terminal import EXPLAINED

    every = argparse.ArgumentParser(
        prog=prog, description="Spark to Kafka, exactly once, from Airflow.", epilog=EXPLAINED
    )
    every.add_argument("--version", action="version", version=__version__)
    commands = every.add_subparsers(required=True, metavar="COMMAND")
    for group in (loads, transactions, cleanup, ids, ledger, doctor, spark_archive, broker, demo):
        group.add_to(commands)
    return every


def _refuse_what_is_no_text(argv: list[str]) -> None:
    from airflow_kafka_eos.errors import ConfigurationError

    for number, word in enumerate(argv, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            # neither ledger nor Kafka has names of other bytes
            raise ConfigurationError(
                f"argument {number}, {word!a}, is not UTF-8", remedy="Write it in UTF-8"
            ) from None


def _say(text: str) -> None:
    print(f"airflow-kafka-eos: {text}", file=sys.stderr)


def _write_no_more() -> None:
    """What stdout still holds would fail once more when Python ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
