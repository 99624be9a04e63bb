"""The lines of text files, a file for each batch. A batch stops in its middle where a test asks for it (see clicks.py):
``writing``, with one of its two Spark partitions written.
"""

from __future__ import annotations

from pathlib import Path


def load(spark, folder, switches):
    if Path(switches, "no-stream").exists():
        return spark.read.text(folder)

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
        from pyspark import TaskContext

        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if TaskContext.get().partitionId() == 1:
                stop_at("writing")
            yield batch.slice(half)

    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder)
    return lines.repartition(2).mapInArrow(held, lines.schema)
