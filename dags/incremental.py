"""A load that reads on from where the last one ended: another topic's records, by offsets that the ledger keeps.

Needs the connection `kafka_default`, and the topics `orders` and `large_orders`.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG

from airflow_kafka_eos import Checks, Cursor, KafkaOffsets, exactly_once_load

ORDERS = KafkaOffsets(["orders"])


# a range without a large order is loaded, too: checks=Checks(min_records=0)
@exactly_once_load(topics=["large_orders"], engine="arrow", cursor=Cursor(source=ORDERS), checks=Checks(min_records=0))
def load_large_orders(since, until):
    """The committed records of the range, as one table of the columns key, value, headers and timestamp."""
    import pyarrow.compute as pc

    orders = ORDERS.read(since, until).read_all()
    return orders.filter(pc.greater(pc.binary_length(orders["value"]), 100))


with DAG(
    "incremental",
    schedule="@hourly",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,  # loads of one cursor run one behind the other: others would wait in their retries
    default_args={"retries": 2},
    tags=["kafka", "exactly-once"],
):
    load_large_orders()
