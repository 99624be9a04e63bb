"""What a compacted topic leaves of a transaction, and for how long. No I/O.

Compaction comes to a segment once it is closed and its newest record is ``min.compaction.lag.ms`` old. It takes records
of aborted transactions, and those whose key was written again. From the first record of an open transaction on it
takes nothing. A marker is kept as long as a batch of its transaction is there, and then for ``delete.retention.ms``.
The last batch of a producer stays, emptied, while its partition remembers the producer
(``producer.id.expiration.ms``), unless its end has raised the epoch (Kafka 3.9 to 4.4, ``Cleaner.cleanInto``).
"""

from __future__ import annotations

from collections.abc import Mapping

#: The topic settings that are read here.
COMPACTION = ("cleanup.policy", "delete.retention.ms", "min.compaction.lag.ms")
#: For how long after its end a transaction should be told from its log: a person may have to look.
WANTED_MS = 86_400_000


def is_compacted(config: Mapping[str, str]) -> bool:
    return "compact" in config.get("cleanup.policy", "delete").split(",")


def marker_kept_ms(config: Mapping[str, str]) -> int | None:
    """Milliseconds for which compaction leaves a transaction's marker, from its end; None: settings are not known."""
    if not all(key in config for key in COMPACTION):
        return None
    return max(0, int(config["min.compaction.lag.ms"])) + max(0, int(config["delete.retention.ms"]))


def may_be_gone(config: Mapping[str, str], open_at_ms: float, now_ms: float) -> bool:
    """Whether compaction may have taken the marker of a transaction that was open at a moment.

    Half the time counts: clocks of different machines are compared, and cleaning begins at its own.

    :param config: of the topic, see :data:`COMPACTION`.
    """
    kept_ms = marker_kept_ms(config)
    return kept_ms is None or now_ms - open_at_ms >= kept_ms / 2


def warning(topic: str, config: Mapping[str, str]) -> str:
    """What a topic's settings mean for a load that is decided now; an empty text when they are no matter."""
    kept_ms = marker_kept_ms(config)
    if not is_compacted(config) or kept_ms is None:
        return ""
    found = []
    lag_ms = int(config["min.compaction.lag.ms"])
    if kept_ms < WANTED_MS:
        found.append(
            f"once its log is cleaned, end markers are kept for {kept_ms / 1000:g} s (min.compaction.lag.ms={lag_ms} "
            f"and delete.retention.ms={config['delete.retention.ms']}): what commit has not seen by then may be in "
            "doubt for good"
        )
    if lag_ms < WANTED_MS:
        found.append(
            f"what is lost after the decision can be copied for {lag_ms / 1000:g} s only (min.compaction.lag.ms), and "
            "must be prepared again then"
        )
    return f"topic {topic} is compacted: {'; '.join(found)}" if found else ""
