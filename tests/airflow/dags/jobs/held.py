"""``count`` rows in two partitions, which stop where a test asks for it (see clicks.py): the first one before its first
row, at ``starting``, the second one in its middle, at ``writing``; ``written.done`` says that it has gone on."""

from __future__ import annotations


def load(spark, prefix, count, switches):
    def stop_at(moment):
        import os
        import time
        from pathlib import Path

        here = Path(switches, moment)
        try:
            here.with_suffix(".hold").rename(here.with_suffix(".here"))
        except FileNotFoundError:
            return
        here.with_suffix(".here").write_text(str(os.getpid()))
        while not here.with_suffix(".go").exists():
            time.sleep(0.02)

    def held(batches):
        from pathlib import Path

        from pyspark import TaskContext

        first = TaskContext.get().partitionId() == 0
        for batch in batches:
            if first:
                stop_at("starting")
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if not first:
                stop_at("writing")
            yield batch.slice(half)
        if not first and Path(switches).is_dir():
            Path(switches, "written.done").touch()

    rows = spark.range(count, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS key", f"concat('{prefix} ', id) AS value"
    )
    return rows.mapInArrow(held, rows.schema)
