"""Writers carry a deadline: past it, none begins a transaction any more (rule: writers-have-a-deadline). No I/O."""

from __future__ import annotations

from airflow_kafka_eos.errors import UndecidableError


def left_ms(deadline_ms: int, now_ms: int, transactional_id: str) -> int:
    """Milliseconds until the deadline, at least 1.

    :param deadline_ms: milliseconds since the epoch, as ``now_ms``.
    :raises UndecidableError: it has passed.
    """
    left = deadline_ms - now_ms
    if left <= 0:
        raise UndecidableError(
            f"the deadline for opening transactions passed {-left} ms ago",
            remedy="Clear prepare: it opens a new attempt. If this comes often, give the load a longer deadline",
            transactional_id=transactional_id,
        )
    return left
