"""The command line: ``airflow-kafka-eos``, and ``airflow kafka-eos`` under Airflow's own.

Each group of commands has a module, whose ``add_to`` adds its arguments. Nothing is imported at the top that takes
time: Ctrl-C may come at any moment, and ends without a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_kafka_eos.errors import KafkaEosError

PROG = "airflow-kafka-eos"
#: as a shell has it for what SIGINT and SIGPIPE end
_INTERRUPTED, _PIPE_CLOSED = 130, 141


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
        return _PIPE_CLOSED


def _run(argv: list[str], prog: str) -> int:
    from airflow_kafka_eos.cli.terminal import TRANSIENT, USAGE, code_of, to_stderr
    from airflow_kafka_eos.errors import KafkaEosError
    from airflow_kafka_eos.extras import needed

    arguments = argparse.Namespace()
    try:
        to_stderr()
        with suppress(AttributeError):  # of a stream that is no file
            # a name that the terminal cannot show is no reason to show nothing
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        _check_encoding(argv)
        arguments = parser(prog).parse_args(argv)
        with needed("this command"):
            code = int(arguments.run(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where it can still be said that it failed
        return code
    except KafkaEosError as e:
        _fill_in(e, arguments)
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


def _fill_in(error: KafkaEosError, arguments: argparse.Namespace) -> None:
    """Which load its remedy's commands are about, where the arguments have named it."""
    from airflow_kafka_eos.load import LoadIdentity, fill_in

    given = vars(arguments)
    for key in given.get("keys", [given.get("key")]):
        if error.load is not None and key:  # such a load has been asked for, and its name is one
            fill_in(error, LoadIdentity(given["namespace"], given["name"], key))


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """All commands."""
    from airflow_kafka_eos import __version__
    from airflow_kafka_eos.cli import (
        cleanup,
        compare,
        cursors,
        doctor,
        examples,
        ids,
        ledger,
        loads,
        local,
        streams,
        transactions,
    )
    from airflow_kafka_eos.cli.terminal import EXPLAINED

    every = _Parser(
        prog=prog, description="Spark to Kafka, exactly once, from Airflow.", epilog=EXPLAINED
    )
    every.add_argument("--version", action="version", version=__version__)
    commands = every.add_subparsers(required=True, metavar="COMMAND")
    for group in (loads, cursors, transactions, streams, cleanup, ids):
        group.add_to(commands)
    compare.add_compare(ledger.add_to(commands))
    for group in (doctor, examples, local):
        group.add_to(commands)
    return every


class _Parser(argparse.ArgumentParser):
    """Takes a name that begins with one dash for the name that it is: Kafka allows it in topics, transactional and
    cluster ids, and who copies one from a table knows nothing of ``--``. No option of ours begins so but ``-h``.
    """

    def _parse_optional(self, arg_string: str) -> Any:
        if arg_string.startswith("-") and not arg_string.startswith(("--", "-h")):
            return None  # no option
        return super()._parse_optional(arg_string)


def _check_encoding(argv: list[str]) -> None:
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


def get_kafka_eos_cli_commands() -> list[Any]:
    """``airflow kafka-eos``, named by the provider's ``cli`` entry.

    One command that hands its words on: so no other call of ``airflow`` pays for our parser.
    """
    from airflow.cli.cli_config import ActionCommand, Arg

    words = Arg(  # type: ignore[no-untyped-call]
        ("words",), nargs=argparse.REMAINDER, metavar="COMMAND", help="a command and its arguments"
    )
    return [
        ActionCommand(
            name="kafka-eos",
            help="Loads into Kafka, exactly once: loads, transactions, cleanup, ledger",
            description="The commands of airflow-kafka-eos: `airflow kafka-eos loads list`, `airflow kafka-eos "
            "transactions list`, `airflow kafka-eos cleanup`, ... Each has its own --help.",
            func=_run_under_airflow,
            args=(words,),
        )
    ]


def _run_under_airflow(arguments: argparse.Namespace) -> None:
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    redirect_stdout_log_handlers_to_stderr()  # what programs read must be ours alone
    sys.exit(main(arguments.words, prog="airflow kafka-eos"))
