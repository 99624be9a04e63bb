"""A true fetch failure: a task's first rows have gone out when the shuffle files that it reads next are gone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Run(NamedTuple):
    """One run of the task that loses its shuffle files."""

    partition: int
    attempt_number: int
    task_attempt_id: int


@dataclass(frozen=True)
class LostShuffle:
    """One task of 200 rows of its own, then 100 of a shuffle whose files its first run has removed."""

    frame: Any
    folder: Path

    def runs(self) -> list[Run]:
        return sorted(Run(*json.loads(path.read_text())) for path in self.folder.glob("*.json"))


def lose_shuffle(spark: Any, folder: Path, *columns: str) -> LostShuffle:
    """
    :param columns: of each row, beside key and value.
    """
    folder.mkdir()
    seen = str(folder)
    # this Spark's own folders: those of the others, of tests beside this one, lie next to them
    manager = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()
    block_folders = [str(one) for one in manager.localDirsString()]

    def rows_then_no_shuffle(batches: Any) -> Any:
        import glob
        import json
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        is_first = not os.path.exists(f"{seen}/removed")
        run = [context.partitionId(), context.attemptNumber(), context.taskAttemptId()]
        with open(f"{seen}/{context.taskAttemptId()}.json", "w") as file:
            json.dump(run, file)
        if is_first:
            removed = [path for one in block_folders for path in glob.glob(f"{glob.escape(one)}/*/shuffle_*")]
            assert removed
            for path in removed:
                os.remove(path)
            open(f"{seen}/removed", "w").close()
            time.sleep(0.5)

    def rows(start: int, end: int) -> Any:
        listed = ", ".join(("cast(id as string) key", "repeat('v', 9000) value", *columns))
        return spark.sql(f"select {listed} from range({start}, {end}, 1, 1)")

    own = rows(0, 200)
    shuffled = rows(200, 300).repartition(1, "key")
    return LostShuffle(own.mapInArrow(rows_then_no_shuffle, own.schema).union(shuffled).coalesce(1), folder)
