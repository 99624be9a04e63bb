"""The range of a cursor on Kafka topics, as options of Spark's own Kafka source. No I/O.

Spark's source reads aborted records unless it is told otherwise; and where it subscribes to topics, offsets of every
partition have to be named, so one that was added behind the range fails all further attempts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def options_of(since: Mapping[str, Any], until: Mapping[str, Any]) -> dict[str, str]:
    """What a job adds to its own connection's options, to read the range that ``KafkaOffsets`` has given it.

    ::

        def load(spark, since, until):
            return spark.read.format("kafka").options(**CONNECTION, **options_of(since, until)).load()

    The committed records of the range's partitions, and an error where some of them are gone.

    :param since: the position that the job is called with; so is ``until``.
    """
    first, last = since["offsets"], until["offsets"]
    begins = {topic: {n: first[topic][n] for n in offsets} for topic, offsets in last.items()}
    return {
        "assign": json.dumps({topic: sorted(map(int, offsets)) for topic, offsets in last.items()}),
        "startingOffsets": json.dumps(begins),
        "endingOffsets": json.dumps(last),
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }
