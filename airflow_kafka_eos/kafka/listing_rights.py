"""Brokers leave out of a listing what one may not describe, without a word. So one id more is described.

An id that is never used is answered with "unknown" where it may be described, with a refusal where it may not
(FindCoordinator and DescribeTransactions ask for DESCRIBE before they look). It shares with the load's ids the load's
prefix only: what allows it allows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.coordinator import Coordinator
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.transaction import TransactionDescription

#: The highest attempt, and slot, that an id can name. No ledger gets there.
_NEVER = 999_999_999
#: A load name, and key, of ids that stand for a whole namespace, or name. Encoded: no ACL on people's names begins so.
_NOBODY = "~"
#: An id that no ledger has: theirs are random.
_NO_LEDGER = "0000000000"


def never_used(load: LoadIdentity, ledger_id: str) -> str:
    """A transactional id of the load that no attempt of it will ever have."""
    return str(naming.TransactionalId(load, ledger_id, _NEVER, role=naming.IdRole.PROBE))


def never_leased(load: LoadIdentity, ledger_id: str) -> str:
    """A pooled id of the load's name, of a slot that there will never be."""
    return str(naming.PooledId(load.namespace, ledger_id, load.name, _NEVER, role=naming.IdRole.PROBE))


def describe_listed(
    coordinator: Coordinator, load: LoadIdentity, ledger_id: str, ids: Iterable[str], *, pooled: bool
) -> dict[str, TransactionDescription]:
    """:meth:`Coordinator.describe <airflow_kafka_eos.kafka.coordinator.Coordinator.describe>` of a load's ids, and
    the certainty that the listing they come from was not limited by ACLs. It costs no request of its own.

    :param pooled: ids of the load name's slots were listed too.
    :raises AccessError: DESCRIBE is missing on ids of the load: a listing may have left out what is open.
    """
    unused = [never_used(load, ledger_id), *([never_leased(load, ledger_id)] if pooled else [])]
    try:
        return coordinator.describe([*ids, *unused])
    except AccessError as e:
        if e.transactional_id is None:
            raise  # a refused login
        prefix = naming.prefix(load, ledger_id)
        raise AccessError(
            f"not all transactions of the load may be described, so what is open cannot be listed: {e.message}",
            remedy=f"Grant the principal of the Kafka connection WRITE (which includes DESCRIBE) on TransactionalIds "
            f"prefixed {naming.namespace_prefix(load.namespace, ledger_id)} or {prefix}; until then nothing is ended",
            load=str(load),
            transactional_id=e.transactional_id,
        ) from e


def why_short(
    coordinator: Coordinator, namespace: str, ledger_id: str, names: Callable[[], Iterable[str]]
) -> AccessError | None:
    """Why a listing of a whole namespace may have left something out; None when it has not.

    One request where the namespace may be described. Where it may not, ACLs may still allow each load name by itself:
    what is listed is all then, as far as these names go.

    :param names: the load names that the ledger knows; asked only where it matters.
    """
    if (refused := _refused(coordinator, [never_used(LoadIdentity(namespace, _NOBODY, _NOBODY), ledger_id)])) is None:
        return None
    loads = [LoadIdentity(namespace, name, _NOBODY) for name in sorted(set(names()))]
    each = [make(load, ledger_id) for load in loads for make in (never_used, never_leased)]
    if each and (refused := _refused(coordinator, each)) is None:
        return None
    prefix = naming.namespace_prefix(namespace, ledger_id)
    return AccessError(
        "not all transactional ids of the namespace may be described, and brokers leave the others out of a listing: "
        f"more may be open than is shown ({refused.message})",
        remedy=f"Grant the principal of the Kafka connection WRITE (which includes DESCRIBE) on TransactionalIds "
        f"prefixed {prefix}, or on those of each load name",
        transactional_id=refused.transactional_id,
    )


def why_ledgers_hidden(coordinator: Coordinator, namespace: str) -> AccessError | None:
    """Why a listing of a namespace may lack other ledgers' ids; None when it does not.

    Rights on one ledger's ids are enough for its loads, and show no other's.
    """
    refused = _refused(coordinator, [never_used(LoadIdentity(namespace, _NOBODY, _NOBODY), _NO_LEDGER)])
    if refused is None:
        return None
    prefix = naming.prefix_of_all_ledgers(namespace)
    return AccessError(
        f"other ledgers' transactions in the namespace are not shown: {refused.message}",
        remedy=f"Grant the principal of the Kafka connection DESCRIBE on TransactionalIds prefixed {prefix}",
        transactional_id=refused.transactional_id,
    )


def _refused(coordinator: Coordinator, unused: Iterable[str]) -> AccessError | None:
    try:
        coordinator.describe(unused)
    except AccessError as e:
        if e.transactional_id is None:
            raise  # a refused login
        return e
    return None
