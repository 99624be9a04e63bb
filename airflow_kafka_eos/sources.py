"""Sources of a cursor that are ready-made: offsets of Kafka topics, and the largest value of a column.

Each answers where its range ends in Airflow's worker, before the job runs (docs/cursors.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_kafka_eos import position
from airflow_kafka_eos.arguments import check_text, check_topics
from airflow_kafka_eos.errors import ConfigurationError, SourceUnavailableError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_eos.kafka.admin.partitions import Partitions
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings


class KafkaOffsets:
    """Kafka topics, by offsets that the ledger keeps; no consumer group has any part in it.

    ::

        source = KafkaOffsets(["orders"], "kafka_shop")
        ExactlyOnceLoad("load", …, cursor=Cursor(source=source))

    A position is ``{"offsets": {"orders": {"0": 12, …}}, "topic_ids": {…}}``; ``json.dumps(since["offsets"])`` is what
    Spark's Kafka source takes for ``startingOffsets``. A range ends at the last stable offsets, so that it can be read
    as ``read_committed``. The first one begins with the oldest records, and so does a partition that is added later.

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
        """The committed records of a range, for a job of ``engine="arrow"``: key, value, headers and timestamp."""
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
    """The largest value of a column that only grows, such as a number of a sequence or a time of change.

    ::

        newest = Watermark("shop", "SELECT max(id) FROM orders")
        ExactlyOnceLoad("load", …, cursor=Cursor(source=newest, first_since=0))

    The job reads what is behind ``since`` and not behind ``until``. A row that becomes visible later with a value that
    is not behind ``until`` is in no range: let the query leave out what is still under way (docs/cursors.md).

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

        url = parse(ledger_url(BaseHook.get_connection(self.conn_id)))
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


def _only(row: Any, sql: str) -> Any:
    if len(row) != 1:
        raise ConfigurationError(
            f"{sql!r} answers {len(row)} values", remedy="Let it answer one: SELECT max(id) FROM …"
        )
    return row[0]
