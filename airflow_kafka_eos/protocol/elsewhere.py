"""Attempts of another Kafka cluster than the one that the session is connected to: nothing is done to them from here.

Rule: one-cluster-per-attempt.

One ledger may serve several clusters, and connections get changed. In the wrong cluster nothing of an attempt is open
and nothing of it is committed: cleanup would close it, and commit would take it for lost.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from airflow_kafka_eos.errors import OtherClusterError
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.protocol.session import Session


def is_elsewhere(session: Session, row: AttemptRow) -> bool:
    """Whether an attempt was written to another cluster.

    Where that is not known it passes for this one: attempts of before ledger revision 0005, those that no application
    was submitted for, and brokers that tell no cluster id.
    """
    return row.cluster_id is not None and session.cluster_id not in (None, row.cluster_id)


def refuse_elsewhere(session: Session, rows: Iterable[AttemptRow], *, closed_too: bool = False) -> None:
    """Refuse to act on attempts of another cluster; called before anything is changed in ledger or Kafka.

    :param rows: the attempts that are about to be acted on.
    :param closed_too: also those that are closed. Else they are let pass: nothing of them is open any more, so that a
        load may go on, or be left as it is, when its connection leads elsewhere by now.
    :raises OtherClusterError: naming the first attempt, and both clusters.
    """
    for row in rows:
        if (closed_too or row.closed_at is None) and is_elsewhere(session, row):
            load = row.load
            if row.closed_at is not None:
                go_on = f"To write the load to {session.cluster_id} too, reload it, or give it a load_key of its own"
            else:
                go_on = _end_it_there(session, row)
            raise OtherClusterError(
                f"attempt {row.number} of load {load} was written to Kafka cluster {row.cluster_id}, the connection "
                f"leads to Kafka cluster {session.cluster_id}",
                remedy=f"Nothing was changed. Use the Kafka connection that leads to {row.cluster_id}. {go_on}",
                load=str(load),
                attempt=row.number,
                written_to=row.cluster_id,
                leads_to=session.cluster_id,
            )


def _end_it_there(session: Session, row: AttemptRow) -> str:
    load = row.load
    cleanup = shlex.join(["cleanup", load.name, load.key, "--namespace", load.namespace])
    return (
        f"To load into {session.cluster_id} from now on, first end what is open there: `airflow-kafka-eos {cleanup} "
        f"--kafka-conn-id …`, with a connection to {row.cluster_id}. If that cluster is gone for good: "
        f"`airflow-kafka-eos ledger forget-cluster {row.cluster_id}`"
    )
