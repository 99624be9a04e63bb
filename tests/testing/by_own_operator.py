"""An own operator, here a BashOperator with spark-submit: ``python -m tests.testing.by_own_operator SPEC``.

It is the task ``submit`` as a DAG has it; but the trial has opened its attempt, and says what is to be written.
"""

from __future__ import annotations

import sys
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.operators.collect import CollectLoadOperator
from airflow_kafka_eos.operators.own_submitter import submitter_of
from airflow_kafka_eos.operators.preparing import Taken
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.airflow.steps import CONTEXT

COMMAND = "spark-submit --master 'local[2]' {{ kafka_eos.application }} --spec {{ kafka_eos.spec }}"


class Assigned(CollectLoadOperator):
    """The ledger is the trial's."""

    assigned = ""

    def take(self, *_: Any, **__: Any) -> Taken:
        ref = ApplicationSpec.from_json(self.assigned).options.attempt
        return Taken(AttemptRow(ref.load, ref.attempt, "trial", "now"), ref, spec=self.assigned)


def main(text: str) -> None:
    spec = ApplicationSpec.from_json(text)
    load = spec.options.attempt.load
    with DAG("trial", schedule=None, start_date=datetime(2026, 1, 1)):
        submit = submitter_of(BashOperator, runs_here=True)(task_id="submit", bash_command=COMMAND)
        collect = Assigned(
            task_id="collect", namespace=load.namespace, load_name=load.name, load_key=load.key, job=spec.job,
            topics=list(spec.options.topics), manifest_dir=spec.options.manifest_dir,
        )  # fmt: skip
        collect.assigned = text
        submit >> collect
    ti = SimpleNamespace(
        dag_id="trial", run_id="run", map_index=-1, task_id="submit", try_number=1, id="try",
        xcom_push=lambda key, value: None,
    )  # fmt: skip
    context: Any = CONTEXT | {"ti": ti, "params": {}, "run_id": "run"}
    submit.render_template_fields(context)
    submit.execute(context)


if __name__ == "__main__":
    main(sys.argv[1])
