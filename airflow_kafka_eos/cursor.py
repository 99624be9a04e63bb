"""A load's cursor, as an author asks for it: where the range of each load begins and ends. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from airflow_kafka_eos import position
from airflow_kafka_eos.arguments import is_filled_in_later, shown
from airflow_kafka_eos.errors import ConfigurationError

#: The key of a run's ``conf`` that names a range: ``{"since": …, "until": …}``.
CONF_KEY = "cursor_range"


@runtime_checkable
class Source(Protocol):
    """Where a load reads, as far as it can say how far that goes. Asked in Airflow's worker, before the job."""

    def bounds(self, since: Any) -> tuple[Any, Any]:
        """Where the range that begins at ``since`` begins and ends, now.

        Asked once for a range: what it answers is what every attempt reads.

        :param since: the cursor's position; None where it has none, at the first load of all.
        :returns: ``since``, with what it says nothing of filled in (a partition that was added); and where it ends: the
            same as it where there is nothing new.
        :raises KafkaEosError: what lies between is gone, or is something else by now.
        """

    def check(self, since: Any, until: Any) -> None:
        """Whether a range can be read as a whole; asked before each attempt, the first one too, and of ranges by name.

        :raises KafkaEosError: it cannot.
        """


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """Each load of the name reads on from where the last one ended; the decision moves the cursor (docs/cursors.md).

    ::

        newest = Watermark(
            "shop", "SELECT max(id) + 1 FROM orders WHERE created_at < now() - interval '10 minutes'"
        )
        ExactlyOnceLoad("load", …, cursor=Cursor(source=newest, first_since=0))

    The job gets ``since`` and ``until`` beside its own arguments: the load is what is ``>= since`` and ``< until``. One
    cursor per load name; mapped loads would share it, and take none. A run whose conf has ``cursor_range`` (since and
    until) reads that range, and leaves the cursor where it is.

    :param source: says where a range ends, before the job runs: ``KafkaOffsets``, ``Watermark``, ``DeltaVersions``, or
        your own (:class:`Source`). None: the job does. It is called with ``until=None`` then, and returns the data
        and ``until``; a retry is called with that very ``until``.
    :param first_since: where the first range of all begins, until one is loaded; None: the job, or the source, knows.
        ``sql=`` needs one.
    :param since: with ``until``, a range by name, for a backfill; the cursor is not moved. (templated)
    :param until: see ``since``. (templated)
    """

    source: Source | None = None
    first_since: Any = None
    since: Any = None
    until: Any = None

    @property
    def is_named(self) -> bool:
        """Whether the author names the range, whatever comes of the templates."""
        return self.since is not None or self.until is not None

    def check(self, *, sql: bool) -> None:
        """What can be known when the DAG is parsed.

        :param sql: the load is ``sql=``, with ``:since`` and ``:until``.
        :raises ConfigurationError: naming the argument.
        """
        if self.source is not None and not isinstance(self.source, Source):
            raise ConfigurationError(
                f"Cursor(source={shown(self.source)}) has no bounds(since) and check(since, until)",
                remedy="Use KafkaOffsets, Watermark, DeltaVersions, or a class with both (docs/cursors.md)",
            )
        if self.first_since is not None:
            position.check_no_gaps(position.checked(self.first_since, "first_since"), "first_since")
        if self.is_named:
            if self.since is None or self.until is None:
                raise ConfigurationError(
                    f"Cursor(since={shown(self.since)}, until={shown(self.until)}) is half a range",
                    remedy="Give both, or none for the cursor's own",
                )
            if not (is_filled_in_later(self.since) or is_filled_in_later(self.until)):
                named(self.since, self.until)
        if sql and not self.is_named:
            if self.source is None:
                raise ConfigurationError(
                    "sql=… with a cursor cannot say where a range ends",
                    remedy="Give the cursor a source: Cursor(source=Watermark(…), first_since=…)",
                )
            if self.first_since is None:
                raise ConfigurationError(
                    "sql=… with a cursor has no first_since: the first query would compare with NULL, and find no row",
                    remedy="Set Cursor(first_since=…) to what is before every row: 0, or a time as the source answers "
                    "it, such as '1970-01-01T00:00:00+00:00'",
                )


def named(since: Any, until: Any) -> tuple[Any, Any]:
    """A range by name, rendered.

    :raises ConfigurationError: an end was not filled in, or is no position; or there is nothing between them.
    """
    first, last = position.read(since, "since"), position.read(until, "until")
    if not position.is_behind(last, first, "the named range"):
        raise ConfigurationError(
            f"the named range is empty: it begins and ends at {shown(first)}", remedy="Let until be behind since"
        )
    return first, last


def range_of_conf(conf: Any) -> tuple[Any, Any] | None:
    """The range that a run's ``conf`` names; None where it names none.

    :raises ConfigurationError: it is no range.
    """
    if not isinstance(conf, dict) or CONF_KEY not in conf:
        return None
    found = conf[CONF_KEY]
    if not isinstance(found, dict) or found.keys() != {"since", "until"}:
        raise ConfigurationError(
            f"the run's conf has {CONF_KEY}={shown(found)}, which is no range",
            remedy=f'Write {{"{CONF_KEY}": {{"since": …, "until": …}}}}',
        )
    return named(found["since"], found["until"])
