"""``count`` rows in two partitions, which stop where a test asks for it (see clicks.py): the first one before its first
row, at ``starting``, the second one in its middle, at ``writing``; ``written.done`` says that it has gone on.

Where ``orphaned`` is, this application does not see its Airflow task die (docs/adr/0008), as behind another PID
namespace; where ``unwatched`` is, it does not see either that it was superseded, as with a store that is away. (A
driver stopped by SIGSTOP would see neither, but the kernel sends SIGHUP to a process group that its task's death leaves
orphaned with a stopped member.)
"""

from __future__ import annotations

from pathlib import Path


def load(spark, prefix, count, switches):
    for name in ("orphaned", "unwatched"):
        switch = Path(switches, name)
        if switch.exists():
            from airflow_kafka_eos.spark import manifest_store, orphan

            switch.unlink()
            orphan.is_alive = lambda identity: True
            if name == "unwatched":
                manifest_store.ManifestStore.superseded_by = lambda self, ref: None

    def stop_at(moment):
        import os
        import time
        from pathlib import Path

        here = Path(switches, moment)
        try:
            here.with_suffix(".hold").rename(here.with_suffix(".here"))
        except FileNotFoundError:
            return False
        here.with_suffix(".here").write_text(str(os.getpid()))
        while not here.with_suffix(".go").exists():
            time.sleep(0.02)
        return True

    def held(batches):
        from pathlib import Path

        from pyspark import TaskContext

        first = TaskContext.get().partitionId() == 0
        for batch in batches:
            if first:
                stop_at("starting")
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            stopped = not first and stop_at("writing")
            yield batch.slice(half)
            if stopped:
                Path(switches, "written.done").touch()

    rows = spark.range(count, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS key", f"concat('{prefix} ', id) AS value"
    )
    return rows.mapInArrow(held, rows.schema)
