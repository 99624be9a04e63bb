"""For Airflow's DeadlineAlert: which loads are not done yet, and what became of them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.hooks.kafka_eos import KafkaEosHook

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.ledger import Ledger

log = logging.getLogger(__name__)

#: What waits for nobody any more.
#: Airflow keeps what a callback returns in a text column, which on MySQL ends at 64 KB.
_TOLD = 20


async def report_unfinished_loads(
    namespace: str | None = None,
    load_name: str | None = None,
    kafka_conn_id: str | None = None,
    ledger_conn_id: str | None = None,
) -> str:
    """A callback for ``AsyncCallback``: the triggerer calls it when a run has missed its deadline, and logs it.

    Only looks. Wrap it in a function of your own to page somebody, and return text from there too: Airflow 3.3 writes
    whatever a callback returns into a text column, and its triggerer ends, with all that it waits for, where that is
    no text. Where namespace or a connection is None, Airflow's section ``[kafka_eos]`` says it, on the triggerer's
    host.

    :param load_name: only loads of that name; None: of the whole namespace.
    :returns: JSON: ``unfinished``, how many loads are neither committed, aborted nor given up, and ``oldest``:
        ``load``, ``state`` and ``updated_at`` of the first 20 of them. The log has all of them, with their reasons.
    :raises LedgerUnavailableError: the metadata DB does not answer.
    :raises OtherLedgerError: there is no ledger on the triggerer's host.
    """
    namespace = setting("namespace", namespace)
    hook = KafkaEosHook(setting("kafka_conn_id", kafka_conn_id), optional("ledger_conn_id", ledger_conn_id))
    resolved = await hook.aresolve()

    def look() -> list[dict[str, Any]]:
        with resolved.ledger(existing=True) as ledger:  # an empty one would report that all is well
            return unfinished_loads(ledger, namespace, load_name)

    found = await asyncio.to_thread(look)
    for row in found:
        log.error("DEADLINE MISSED: load %(load)s has been %(state)s since %(updated_at)s: %(reason)s", row)
    oldest = [{field: row[field] for field in ("load", "state", "updated_at")} for row in found[:_TOLD]]
    return json.dumps({"unfinished": len(found), "oldest": oldest})


def unfinished_loads(ledger: Ledger, namespace: str, load_name: str | None) -> list[dict[str, Any]]:
    """Loads that are neither committed, aborted nor given up; oldest first.

    :returns: ``load``, ``state``, ``attempt``, ``reason``, ``updated_at`` of each.
    """
    return [
        {
            "load": str(row.load),
            "state": row.state.value,
            "attempt": row.newest_attempt,
            "reason": row.reason,
            "updated_at": row.updated_at,
        }
        for row in ledger.loads(namespace, load_name)
        if not row.state.is_ended
    ]
