"""``spark-archive``: the archive that brings this package to Spark's executors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from airflow_kafka_eos.cli.terminal import OK


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    archive = commands.add_parser(
        "spark-archive",
        help="write the archive for spark-submit's --py-files",
        description="Write a zip of this package and kafka-python, for executors where they are not installed: "
        'spark_args={"py_files": "OUT.zip"}, or spark-submit --py-files OUT.zip. Libraries with machine code must be '
        "installed there: see docs/spark.md.",
    )
    archive.add_argument("out", type=Path, metavar="OUT.zip", help="where to; replaced if it is there")
    archive.set_defaults(run=_archive)


def _archive(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.load import WriterName
    from airflow_kafka_eos.spark.python_env import NEEDED, PACKAGES, write_archive

    count = write_archive(arguments.out)
    natives = sorted(set(NEEDED[WriterName.ARROW].values()) - {"kafka-python"})
    print(f"{arguments.out}: {count} files of {' and '.join(PACKAGES)}")
    print(f"executors need beside it, installed: {', '.join(natives)}")
    return OK
