"""What an editor and mypy know of a load: right calls pass, a misspelt argument or word is flagged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: A line with a comment `# wrong: <code>` must be flagged with that code, no other line with any.
SNIPPET = '''
from datetime import timedelta
from typing import Any

from airflow.sdk import XComArg

from airflow.providers.standard.operators.bash import BashOperator

from airflow_kafka_eos import Checks, ExactlyOnceLoad, Submit, Transactions, exactly_once_load
from airflow_kafka_eos.operators.collect import CollectLoadOperator
from airflow_kafka_eos.operators.maintenance import SweepLeftoversOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator


def job(spark: Any) -> Any: ...
def tables() -> XComArg: raise NotImplementedError


QUICK = Transactions(quiet_period=60, hold_time=timedelta(hours=1), max_transactional_ids=None)
Transactions(scope="loads")  # wrong: arg-type
Transactions(quiet_period="60")  # wrong: arg-type
Transactions(hold_tim=60)  # wrong: call-arg
QUICK.hold_time = 60  # wrong: misc
Checks(1)  # wrong: call-arg
Checks(check=True)  # wrong: arg-type
ExactlyOnceLoad("a", job="j.py", topics=["t"], transactions=QUICK, checks=Checks(min_records=None), tooltip="all")
ExactlyOnceLoad("a", job="j.py", topics=["t"], value_format={"format": "json", "registration": "lookup"})
ExactlyOnceLoad("a", job="j.py", topics=["t"], on_committed="{{ params.mode }}")
ExactlyOnceLoad("a", sql=tables(), topics=tables(), job_args=tables(), item=tables(), dual_write_sql=tables())
ExactlyOnceLoad("a", job="j.py", topics=["t"], min_records=1)  # wrong: call-arg
ExactlyOnceLoad("a", job="j.py", topics=["t"], retries=1)  # wrong: call-arg
ExactlyOnceLoad("a", job="j.py", topics=["t"], checks=QUICK)  # wrong: arg-type
ExactlyOnceLoad("a", job="j.py", topics=["t"], checks={"min_records": 1})  # wrong: arg-type
ExactlyOnceLoad("a", job="j.py", topics=["t"], value_format="avro")  # wrong: arg-type
ExactlyOnceLoad("a", job="j.py", topics=["t"], value_format={"format": "avro"})  # wrong: arg-type
ExactlyOnceLoad("a", job=job, topics=["t"])  # wrong: arg-type
ExactlyOnceLoad("a", job="j.py", topics=["t"], submit=Submit(BashOperator, runs_here=True, bash_command="true"))
ExactlyOnceLoad("a", job="j.py", topics=["t"], submit=BashOperator)  # wrong: arg-type
Submit(BashOperator, runs_here="yes")  # wrong: arg-type
Submit("BashOperator")  # wrong: arg-type

mapped = ExactlyOnceLoad.partial("b", job="j.py", job_args={"day": "{{ ds }}"}, transactions=QUICK)
ExactlyOnceLoad.partial("b", jobb="j.py")  # wrong: call-arg
ExactlyOnceLoad.partial("b", transactions="arrow")  # wrong: arg-type
mapped.expand(topic=["t"])
mapped.expand(topic=tables())
mapped.expand(topik=["t"])  # wrong: call-arg
mapped.expand_kwargs([{"item": "a", "topics": ["t"]}])
mapped.expand_kwargs(tables(), names=["item", "topics"])
mapped.expand_kwargs([{"itm": "a"}])  # wrong: typeddict-unknown-key
mapped.expand_kwargs(tables(), names=["itm"])  # wrong: list-item

decorated = exactly_once_load(topics=["t"], checks=Checks(min_records=1), group_id="x")(job)
exactly_once_load(topics=["t"], chekcs=Checks())  # wrong: call-arg
exactly_once_load(checks=Checks())  # wrong: call-arg
exactly_once_load(topics=["t"], transactions=Checks())  # wrong: arg-type
exactly_once_load(job, topics=["t"])  # wrong: arg-type
decorated.override(group_id="again", topics=["u"], transactions=Transactions(writer="arrow"))(day="{{ ds }}")
decorated.override(group="again")  # wrong: call-arg

PrepareLoadOperator(task_id="p", load_name="l", sql="SELECT 1", topics=["t"], hold_time=60, executor_cores=2)
PrepareLoadOperator(task_id="p", load_name="l", sql="SELECT 1", topics=["t"], hold_time="1h")  # wrong: arg-type
PrepareLoadOperator(task_id="p", load_name="l", sql="SELECT 1", topics=["t"], engine="arow")  # wrong: arg-type
CollectLoadOperator(task_id="c", load_name="l", sql="SELECT 1", topics=["t"], scope="load")
CollectLoadOperator(task_id="c", load_name="l", sql="SELECT 1", topics=["t"], scope="loads")  # wrong: arg-type
SweepLeftoversOperator(task_id="s", abandoned_after=3600)
SweepLeftoversOperator(task_id="s", abandoned_after="1h")  # wrong: arg-type
'''


def test_mypy_flags_a_misspelt_argument_of_every_form(tmp_path: Path) -> None:
    file = tmp_path / "a_dag.py"
    file.write_text(SNIPPET)
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(file)],
        cwd=ROOT,  # what `mypy` there has found out is kept, and used again
        capture_output=True,
        text=True,
        timeout=280,
    )
    flagged = {int(n): code for n, code in re.findall(r"a_dag\.py:(\d+): error: .*\[([a-z-]+)\]$", run.stdout, re.M)}
    wanted = {
        n: line.rpartition("# wrong: ")[2] for n, line in enumerate(SNIPPET.splitlines(), 1) if "# wrong: " in line
    }
    assert flagged == wanted, run.stdout + run.stderr
    assert len(wanted) > 15
