"""Whether a load's key fits what its job is asked for, by a digest of that. No I/O.

A key that is finer than what the job reads loads the same data twice (the default key has the time of day, the job gets
only ``ds``); a coarser one leaves data out (an hourly load with the key ``ds``). Neither is an error for sure, so it is
told, not refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.generation import first_key
from airflow_kafka_eos.spark.dag_file import JOB

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow

#: What of a run tells its data from another run's; what is in no template of these, the job finds out by itself.
_OF_THE_RUN = (
    r"ds|ds_nodash|ts|ts_nodash|ts_nodash_with_tz|logical_date|data_interval_start|data_interval_end"
    r"|partition_key|partition_date|params|conf|run_after"
)
_TEMPLATE = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_NAME = re.compile(rf"(?<!\w)({_OF_THE_RUN})(?!\w)")


def follow_from_run(*given: Any) -> bool:
    """Whether any text in these arguments, not rendered yet, is made of the run's dates, partition or parameters."""
    for one in given:
        if isinstance(one, str):
            if any(_NAME.search(template) for template in _TEMPLATE.findall(one)):
                return True
        elif isinstance(one, Mapping):
            if follow_from_run(*one.values()):
                return True
        elif isinstance(one, Sequence) and follow_from_run(*one):
            return True
    return False


def digest_of(
    *, job: str | None, sql: str | None, job_args: Mapping[str, Any], topics: Sequence[str], spark: Any
) -> str:
    """Of what is asked for, rendered. A function of the DAG file is known by its load, not by where the file is.

    :param spark: what else of the application may say what it reads: its ``conf`` and environment.
    """
    args = {k: v for k, v in job_args.items() if k not in ("file", "path")} if job == JOB else dict(job_args)
    return sha256_of({"job": job, "sql": sql, "job_args": args, "topics": sorted(topics), "spark": spark})


def sha256_of(arguments: Any) -> str:
    """A digest of rendered arguments."""
    return hashlib.sha256(json.dumps(arguments, sort_keys=True, default=str).encode()).hexdigest()


def asked_before(row: AttemptRow, same: Sequence[AttemptRow]) -> str:
    """What to say where other keys of the load's name were committed with these very arguments; empty: nothing.

    :param same: committed attempts with them, of any key: the newest ``MOST_SAME``.
    """
    from airflow_kafka_eos.ledger.queries import MOST_SAME

    others = [a for a in same if first_key(a.load.key) != first_key(row.load.key)]
    if not others:
        return ""
    of = others[-1]
    many = "many" if len(same) >= MOST_SAME else str(len(others) - 1)
    more = f", and {many} more," if len(others) > 1 else ""
    return (
        f"The key {row.load.key} asks the job for exactly what the key {of.load.key}{more} asked for, committed by "
        f"{of.responsible}, decided at {of.decided_at}. Where the job reads only what its arguments name, the topic "
        "gets the same records twice: load_key is finer than what the job reads. Make it of the same template "
        "(docs/load-keys.md)"
    )


def asked_for_something_else(row: AttemptRow, arguments_sha256: str, *, owner: str) -> str:
    """What to say where another run has committed this key with other arguments; empty: nothing.

    :param row: the committed attempt.
    """
    if row.arguments_sha256 in (None, arguments_sha256) or row.responsible == owner:
        return ""
    return (
        f"The key {row.load.key} was committed by {row.responsible}, decided at {row.decided_at}, with other "
        "arguments for the job than this run's: what this run asked for is not loaded. Is load_key coarser than what "
        "the job reads? (docs/load-keys.md)"
    )
