"""An operator of the author's that defers, in mapped loads: its platform is this very process, once it comes back."""

from __future__ import annotations

import os
import threading
from datetime import datetime, timedelta

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, task

from airflow_kafka_eos import ExactlyOnceLoad, Submit, Transactions


class PlatformOperator(BaseOperator):
    """Its fields are rendered twice, in two processes."""

    template_fields = ("argument", "run_name")

    def __init__(self, *, argument, run_name, **kwargs):
        super().__init__(**kwargs)
        self.argument, self.run_name = argument, run_name

    def execute(self, context):
        self.defer(trigger=TimeDeltaTrigger(timedelta(milliseconds=100)), method_name="through")

    def through(self, context, event=None):  # dag.test() hands over nothing else
        import pyarrow as pa

        from airflow_kafka_eos.arrow.engine import prepare
        from airflow_kafka_eos.arrow.stream import Bounds
        from airflow_kafka_eos.hooks import KafkaEosHook
        from airflow_kafka_eos.spark.manifest_store import ManifestStore
        from airflow_kafka_eos.spark.spec import ApplicationSpec
        from airflow_kafka_eos.spark.spec_argument import read_spec

        spec = ApplicationSpec.from_json(read_spec(self.argument))
        rows = pa.table({"value": [f"{spec.job_args['of']} {n}" for n in range(3)]})
        prepare(
            spec, KafkaEosHook().resolve().settings, ManifestStore(spec.options.manifest_dir), lambda: rows,
            bounds=Bounds(10**6, None), stop=threading.Event(), say=print,
        )  # fmt: skip
        return self.run_name


with DAG("own_deferring", schedule=None, start_date=datetime(2026, 1, 1), catchup=False):

    @task
    def tables():
        return [{"topics": [f"own-{n}"], "job_args": {"of": n}} for n in ("one", "two")]

    ExactlyOnceLoad.partial(
        "tables",
        job="rows.py",
        manifest_dir=os.path.join(os.environ["AIRFLOW_HOME"], "manifests"),
        transactions=Transactions(quiet_period=timedelta(seconds=1), max_transactional_ids=None),
        submit=Submit(
            PlatformOperator, argument="{{ kafka_eos.spec }}", run_name="{{ run_id }} {{ kafka_eos.attempt }}"
        ),
    ).expand_kwargs(tables(), names=["topics", "job_args"])
