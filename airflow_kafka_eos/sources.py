"""Sources of a cursor that are ready-made: offsets of Kafka topics, the largest value of a column, a Delta table.

Each answers where its range ends in Airflow's worker, before the job runs (docs/cursors.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_kafka_eos import position
from airflow_kafka_eos.arguments import check_text, check_topics
from airflow_kafka_eos.errors import ConfigurationError, SourceUnavailableError
from airflow_kafka_eos.extras import needed

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_eos.kafka.admin.partitions import Partitions
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings


class KafkaOffsets:
    """Kafka topics, by offsets that the ledger keeps; no consumer group has any part in it.

    ::

        source = KafkaOffsets(["orders"], "kafka_shop")
        ExactlyOnceLoad("load", …, cursor=Cursor(source=source))

    A position is ``{"offsets": {"orders": {"0": 12, …}}, "topic_ids": {…}}``. A Spark job reads with the options of
    :func:`airflow_kafka_eos.spark.kafka_range.options_of`: without them it reads what was aborted. A range ends at the
    last stable offsets, so that it can be read as ``read_committed``. The first one begins with the oldest records, and
    so does a partition that is added later.

    :param topics: which it reads.
    :param kafka_conn_id: connection of type ``kafka`` to their cluster; it may be another one than the load's.
    """

    def __init__(self, topics: Sequence[str], kafka_conn_id: str = "kafka_default") -> None:
        check_topics(topics, rendered=True)
        check_text("kafka_conn_id", kafka_conn_id, required=True)
        self.topics = tuple(topics)
        self.kafka_conn_id = kafka_conn_id

    def bounds(self, since: Any) -> tuple[Any, Any]:
        """See :class:`~airflow_kafka_eos.cursor.Source`.

        :raises TopicError: records were deleted before they were read, or a topic was made anew.
        """
        from airflow_kafka_eos.kafka.admin.offset_ranges import bounds

        with self._partitions() as partitions:
            return bounds(partitions, self.topics, since)

    def check(self, since: Any, until: Any) -> None:
        """See :class:`~airflow_kafka_eos.cursor.Source`."""
        from airflow_kafka_eos.kafka.admin.offset_ranges import check

        with self._partitions() as partitions:
            check(partitions, since, until)

    def read(self, since: Mapping[str, Any], until: Mapping[str, Any]) -> pa.RecordBatchReader:
        """The committed records of a range, for a job of ``engine="arrow"``: key, value, headers and timestamp.

        Partition after partition, and the same batches whenever it is read.
        """
        import pyarrow as pa

        from airflow_kafka_eos.kafka.read_range import SCHEMA, read_range

        return pa.RecordBatchReader.from_batches(SCHEMA, read_range(self._settings(), since, until))

    def _settings(self) -> KafkaSettings:
        from airflow_kafka_eos.kafka_connection import settings_of

        return settings_of(self.kafka_conn_id, BaseHook.get_connection(self.kafka_conn_id).extra_dejson)

    @contextmanager
    def _partitions(self) -> Iterator[Partitions]:
        from airflow_kafka_eos.kafka.admin.partitions import Partitions
        from airflow_kafka_eos.kafka.client.wire import Wire

        with Wire(self._settings()) as wire:
            yield Partitions(wire)


class Watermark:
    """Where a table has come to: by a column that only grows, such as a sequence's number; or by the database's clock.

    ::

        newest = Watermark(
            "shop", "SELECT max(id) + 1 FROM orders WHERE created_at < now() - interval '10 minutes'"
        )
        ExactlyOnceLoad("load", …, cursor=Cursor(source=newest, first_since=0))

    The job reads what is ``>= since`` and ``< until``, so rows that come later with the largest value are in the next
    range: of a time or a date that no update changes ask for ``max(at)``, of numbers that are given out once for
    ``max(id) + 1``. A row that becomes visible later with a smaller value is in no range: let the query leave out what
    is still under way, by twice the longest transaction. By a time of change never ask for ``max(updated_at)``, which
    an update can make smaller: ask for the database's clock some minutes ago, ``SELECT now() - interval '10 minutes'``
    (docs/cursors.md).

    :param conn_id: Airflow connection of type postgres, mysql, mariadb or sqlite.
    :param sql: answers one row with one value: a whole number, a date, or a time. No row, or NULL: nothing is there.
    """

    def __init__(self, conn_id: str, sql: str) -> None:
        check_text("conn_id", conn_id, required=True)
        check_text("sql", sql, required=True)
        self.conn_id, self.sql = conn_id, sql

    def bounds(self, since: Any) -> tuple[Any, Any]:
        """See :class:`~airflow_kafka_eos.cursor.Source`.

        :raises ConfigurationError: the query fails, or its answer is no position; or there is no row, and no beginning.
        :raises SourceUnavailableError: the database does not answer.
        """
        found = self._asked()
        if found is not None:
            return since, position.checked(found, f"the answer to {self.sql!r}")
        if since is None:
            raise ConfigurationError(
                f"{self.sql!r} finds nothing, and the cursor has no first_since",
                remedy="Set Cursor(first_since=…) to what is before every row",
            )
        return since, since

    def check(self, since: Any, until: Any) -> None:
        """See :class:`~airflow_kafka_eos.cursor.Source`: a table does not say what it has forgotten."""

    def _asked(self) -> Any:
        from sqlalchemy import create_engine, text
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError
        from sqlalchemy.pool import NullPool

        from airflow_kafka_eos.hooks import ledger_url
        from airflow_kafka_eos.ledger.database import is_passing, is_refused, is_wrong_sql
        from airflow_kafka_eos.ledger.location import parse, scrub

        url = parse(ledger_url(BaseHook.get_connection(self.conn_id), "be read by a Watermark"))
        problem: type[ConfigurationError] | type[SourceUnavailableError] = ConfigurationError
        try:
            with create_engine(url, poolclass=NullPool).connect() as connection:
                row = connection.execute(text(self.sql)).first()
            return None if row is None else _only(row, self.sql)
        except DBAPIError as e:
            said = scrub(str(e.orig), url)
            if is_passing(e) and not (is_wrong_sql(e) or is_refused(e)):
                problem = SourceUnavailableError
        except SQLAlchemyError as e:
            said = scrub(str(e), url)
        # outside of the except blocks: the driver's own exception may quote the URL
        raise problem(
            f"connection {self.conn_id!r} does not answer {self.sql!r}: {said}",
            remedy="Correct the query, or try again",
        )


class DeltaVersions:
    """A Delta table, by its versions; with its change data feed for ``engine="arrow"``.

    ::

        source = DeltaVersions("s3://lake/orders", storage_options={"region": "eu-central-1"})
        ExactlyOnceLoad("load", …, cursor=Cursor(source=source))

    A position is ``{"version": 7, "table_id": "…"}``: the range from version 3 to 7 is what versions 4 to 7 have
    changed. The first one begins before version 0. Needs the package deltalake (extra ``delta``) in Airflow's worker; a
    Spark job reads with ``startingVersion`` since + 1 and ``endingVersion`` until.

    :param path: of the table, as deltalake takes it.
    :param storage_options: see deltalake; a function that makes them is called when the table is opened.
    """

    def __init__(
        self, path: str, storage_options: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        check_text("path", path, required=True)
        self.path, self._options = path, storage_options

    def bounds(self, since: Any) -> tuple[Any, Any]:
        """See :class:`~airflow_kafka_eos.cursor.Source`.

        :raises ConfigurationError: another table is there by now; or there is none.
        """
        table = self._table()
        first, now = _delta(since), {"version": int(table.version()), "table_id": str(table.metadata().id)}
        if first is None:
            return {"version": -1, "table_id": now["table_id"]}, now
        position.is_behind(now, first, f"the range of {self.path}")  # another id has no order
        return first, now

    def check(self, since: Any, until: Any) -> None:
        """See :class:`~airflow_kafka_eos.cursor.Source`."""
        self.bounds(until)

    def read(self, since: Mapping[str, Any], until: Mapping[str, Any]) -> Any:
        """What the versions of a range have changed, for a job of ``engine="arrow"``: deltalake's ``load_cdf``.

        It has the table's columns, ``_change_type``, ``_commit_version`` and ``_commit_timestamp``. The table needs
        ``delta.enableChangeDataFeed``.
        """
        table = self._table()
        if since["version"] == until["version"]:
            return _nothing(table)
        return table.load_cdf(starting_version=since["version"] + 1, ending_version=until["version"])

    def _table(self) -> Any:
        with needed("a cursor on a Delta table"):
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError, TableNotFoundError

        options = self._options() if callable(self._options) else self._options
        try:
            return DeltaTable(self.path, storage_options=None if options is None else dict(options))
        except TableNotFoundError as e:
            raise ConfigurationError(f"there is no Delta table {self.path}: {e}", remedy="Correct the path") from e
        except (DeltaError, OSError) as e:
            raise SourceUnavailableError(f"the Delta table {self.path} cannot be opened: {e}", remedy="Look why") from e


def _nothing(table: Any) -> Any:
    import pyarrow as pa

    every = pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=table.version()))
    return pa.RecordBatchReader.from_batches(every.schema, iter(()))


def _delta(since: Any) -> dict[str, Any] | None:
    if since is None:
        return None
    if not isinstance(since, Mapping) or not {"version"} <= {*since} <= {"version", "table_id"}:
        raise ConfigurationError(
            f"{since!r:.200} is no position of a Delta table", remedy='Write {"version": 7}, best with its "table_id"'
        )
    return dict(since)


def _only(row: Any, sql: str) -> Any:
    if len(row) != 1:
        raise ConfigurationError(
            f"{sql!r} answers {len(row)} values", remedy="Let it answer one: SELECT max(id) + 1 FROM …"
        )
    return row[0]
