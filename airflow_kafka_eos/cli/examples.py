"""``examples list`` and ``examples copy``: the DAGs of dags/, which the wheel carries, for an Airflow of one's own."""

from __future__ import annotations

import argparse
import ast
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from airflow_kafka_eos.cli.terminal import OK, add_output, say, show
from airflow_kafka_eos.errors import ConfigurationError

_PACKAGE = Path(__file__).parents[1]
#: In a wheel, in a clone. Not ``example_dags``: Airflow 3.3 runs what providers have there, where ``[core]
#: load_examples`` is on, as it is by default, and a copy would have the same DAG ids.
_FOLDERS = (_PACKAGE / "dags", _PACKAGE.parent / "dags")


#: How the name of a file ends that an example's Spark job is in.
_OF_A_JOB = "_job"


class Example(NamedTuple):
    """A DAG file. Its docstring says what it is in the first sentence, and what it needs in the last paragraph.

    ``job``: the text of the file beside it that its Spark job is in, if it has one.
    """

    name: str
    text: str
    job: str | None = None

    @property
    def files(self) -> dict[str, str]:
        """All that is to be copied: text by file name."""
        job = {} if self.job is None else {f"{self.name}{_OF_A_JOB}.py": self.job}
        return {f"{self.name}.py": self.text} | job

    @property
    def what(self) -> str:
        """Without the full stop."""
        return self._paragraphs()[0].partition(". ")[0].removesuffix(".")

    @property
    def needs(self) -> str:
        """Connections, topics and what else there must be before it runs."""
        return self._paragraphs()[-1].removeprefix("Needs ").removesuffix(".")

    @property
    def oldest_airflow(self) -> tuple[int, ...]:
        """The oldest that can read it; none, where any can that this package runs with."""
        said = re.search(r"Airflow (\d+)\.(\d+)", self.needs)
        return tuple(int(number) for number in said.groups()) if said else ()

    def _paragraphs(self) -> list[str]:
        told = ast.get_docstring(ast.parse(self.text)) or ""
        return [" ".join(paragraph.split()) for paragraph in told.split("\n\n")]


def examples() -> list[Example]:
    """All of them, by name.

    :raises ConfigurationError: neither a wheel nor a clone is around this module.
    """
    for folder in _FOLDERS:
        if found := {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}:
            jobs = {f"{name}{_OF_A_JOB}" for name in found} & found.keys()
            return [Example(name, found[name], found.get(name + _OF_A_JOB)) for name in found if name not in jobs]
    raise ConfigurationError(
        f"the example DAGs are not in {_FOLDERS[0]}", remedy="Install the wheel, or an editable clone"
    )


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    group = commands.add_parser("examples", help="example DAGs, and the maintenance DAG, to be copied")
    actions = group.add_subparsers(required=True, metavar="COMMAND")

    listing = actions.add_parser("list", help="which there are, and what each needs")
    add_output(listing)
    listing.set_defaults(run=_list)

    copy = actions.add_parser(
        "copy",
        help="copy them into a folder",
        description="Copy the example DAGs and the maintenance DAG into a folder, such as Airflow's dags_folder. A "
        "file that is there with other content is an error, and nothing is copied then. What the installed Airflow is "
        "too old for is left out, unless it is named.",
    )
    copy.add_argument(
        "folder", type=Path, nargs="?", default=Path("dags"), metavar="FOLDER",
        help="made where it is missing; default: dags",
    )  # fmt: skip
    copy.add_argument(
        "--name", action="append", default=[], metavar="NAME",
        help="only this one, such as kafka_eos_maintenance; may be given several times",
    )  # fmt: skip
    copy.add_argument("--force", action="store_true", help="replace files that are there with other content")
    copy.set_defaults(run=_copy)


def _list(arguments: argparse.Namespace) -> int:
    rows = [{"name": one.name, "what": one.what, "needs": one.needs} for one in examples()]
    if arguments.output == "json":
        show(arguments, rows)
    else:  # sentences: a table of them fits no terminal
        print("\n\n".join("{name}: {what}\n    needs {needs}".format(**row) for row in rows))
    return OK


def _copy(arguments: argparse.Namespace) -> int:
    wanted = _named(arguments.name) if arguments.name else _for_this_airflow(examples())
    folder: Path = arguments.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {name: text for one in wanted for name, text in one.files.items()}
        changed = [name for name, text in files.items() if _is_other(folder / name, text)]
        if changed and not arguments.force:
            raise ConfigurationError(
                f"{folder} has {', '.join(changed)} with other content, so nothing was copied",
                remedy="Name another folder, or add --force to replace them",
            )
        for name, text in files.items():
            _write(folder / name, text)
    except OSError as e:
        raise ConfigurationError(
            f"{folder} cannot be written to: {e.strerror or e}", remedy="Name a folder that you may write to"
        ) from e
    for one in wanted:
        for name in one.files:
            print(folder / name)
        say(f"    needs {one.needs}")
    return OK


def _named(names: list[str]) -> list[Example]:
    every = {one.name: one for one in examples()}
    if unknown := [name for name in names if name not in every]:
        raise ConfigurationError(f"there is no example {', '.join(unknown)}", remedy=f"Name one of {', '.join(every)}")
    return [every[name] for name in dict.fromkeys(names)]


def _for_this_airflow(every: list[Example]) -> list[Example]:
    """All, where no Airflow is installed here: they are copied for another one."""
    try:
        installed = version("apache-airflow-core")
    except PackageNotFoundError:
        return every
    has = tuple(int(number) for number in installed.split(".")[:2])
    for one in every:
        if one.oldest_airflow > has:
            needed = ".".join(map(str, one.oldest_airflow))
            say(f"left out {one.name}, which needs Airflow {needed}: {installed} is here")
    return [one for one in every if one.oldest_airflow <= has]


def _is_other(path: Path, text: str) -> bool:
    """Whether there is something that a copy would take away; a link that leads nowhere, too."""
    return os.path.lexists(path) and not (path.is_file() and path.read_bytes() == text.encode())


def _write(path: Path, text: str) -> None:
    # whole or not at all: a DAG processor may be looking; and what a link leads to stays as it is
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
