"""Which transactional ids a login may describe: brokers leave the others out of a listing, without a word.

Of a load's own ids, one id more is described: one that is never used. It is answered with "unknown" where it may be
described, with a refusal where it may not (FindCoordinator and DescribeTransactions ask for DESCRIBE before they look).
It shares with the load's ids the load's prefix only: what allows it allows all of them.

Of other applications' ids nobody here knows the names (rule: hanging-is-proven). But Kafka's own authorizer goes by
ACLs alone, and tells ids apart only by the names and prefixes in them. So one id of each kind is tried: one that no
ACL names, one behind each prefix, each name itself. Where all may be described, every id may. That asks for DESCRIBE on
the Cluster (the ACLs) and DESCRIBE_CONFIGS on the Cluster (which authorizer it is). Another authorizer may go by
anything, so there nothing is proven; nor by a login of Amazon MSK's IAM, whose rights are policies that no broker
shows. Each broker is asked: each filters its own listing, by what it knows of ACLs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kafka import errors
from kafka.protocol.admin.acl import DescribeAclsRequest
from kafka.protocol.admin.transactions import DescribeTransactionsRequest

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.end_transactions import batches
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.cloud_tokens import MSK
from airflow_kafka_eos.kafka.client.settings import TOKEN_CALLBACK
from airflow_kafka_eos.kafka.client.wire import Wire
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
    """:meth:`~airflow_kafka_eos.kafka.admin.coordinator.Coordinator.describe` of a load's ids, and
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


AUTHORIZER = "authorizer.class.name"
#: What decides by ACLs alone; an empty name: nothing is refused to anybody.
_BY_ACLS = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_TRANSACTIONAL_ID, _ANY, _LITERAL = 5, 1, 3
_WILDCARD = "*"
#: The right is looked at first, these come behind it.
_ALLOWED = retry.codes(
    errors.NoError,
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
    errors.TransactionalIdNotFoundError,
)

#: Characters that an id may end in, those that few names have first.
_ENDS = (*range(0x7E, 0x20, -1), *range(0xA1, 0xD800))

#: The rights that show all there is.
REMEDY = (
    "Grant the principal of the Kafka connection DESCRIBE on TransactionalId * (and no DENY on any), on Topic "
    "__transaction_state and on the Cluster, and DESCRIBE_CONFIGS on the Cluster, all of which only read; or look with "
    "a login that has them (docs/acls.md)"
)
_NOT_FROM_HERE = "Ask who runs the cluster whose the transaction is: from here it cannot be found out"


class Pattern(NamedTuple):
    """What an ACL names: one transactional id, or all that begin with a text."""

    name: str
    is_prefix: bool

    def matches(self, transactional_id: str) -> bool:
        return transactional_id.startswith(self.name) if self.is_prefix else transactional_id == self.name


def why_some_hidden(wire: Wire) -> AccessError | None:
    """Why a listing of everybody's transactional ids may leave some out; None where it is proven that it does not.

    Asked before the listing: rights that were granted a moment ago are known to every broker then.

    :raises BrokerUnavailableError: a broker does not answer.
    """
    if wire.settings.texts.get(TOKEN_CALLBACK) == MSK:
        why = "the rights of this login are IAM's policies, and brokers do not show them"
        return _hidden(why, remedy=_NOT_FROM_HERE)
    brokers = Partitions(wire).broker_configs([AUTHORIZER])
    shown = {settings.get(AUTHORIZER) for settings in brokers.values()}
    if None in shown:
        return _hidden("the brokers do not show which authorizer they have, DESCRIBE_CONFIGS on the Cluster is missing")
    for name in sorted(filter(None, shown - {"", _BY_ACLS})):
        return _hidden(
            f"the brokers' authorizer {name} is not Kafka's own, and it is not known what it hides",
            remedy=_NOT_FROM_HERE,
        )
    for node_id in sorted(brokers):
        patterns = _patterns(wire, node_id)
        if patterns is None:
            return _hidden("the brokers do not show their ACLs, DESCRIBE on the Cluster is missing")
        refused = _nothing_shown(wire, node_id, one_of_each(patterns))
        if refused is not None:
            return _hidden(f"DESCRIBE is refused on TransactionalId {refused}, for one")
    return None


def one_of_each(patterns: Iterable[Pattern]) -> list[str]:
    """Ids so that every id there can be is matched by the very patterns that match one of these. No I/O.

    Of the prefixes that match an id the longest says which others do, for these are prefixes of it. So for each there
    is one id that goes on with what no longer name goes on with.
    """
    every = set(patterns)
    found = {p.name for p in every if p.name}
    for start in {"", *(p.name for p in every if p.is_prefix)}:
        taken = {p.name[len(start)] for p in every if p.name.startswith(start) and p.name != start}
        found.add(start + next(c for c in map(chr, _ENDS) if c not in taken))
    return sorted(found)


def _patterns(wire: Wire, node_id: int) -> list[Pattern] | None:
    """What the ACLs on transactional ids name, whosever they are; None where they may not be seen."""
    request = DescribeAclsRequest(
        resource_type_filter=_TRANSACTIONAL_ID,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )

    def attempt() -> list[Pattern] | None:
        answer = wire.send_to_broker(node_id, request)
        if answer.error_code == errors.SecurityDisabledError.errno:
            return []
        if answer.error_code == errors.ClusterAuthorizationFailedError.errno:
            return None
        retry.check(answer.error_code, operation="DESCRIBE", resource="Cluster")
        return [
            Pattern(r.resource_name, r.pattern_type != _LITERAL)
            for r in answer.resources
            if (r.resource_name, r.pattern_type) != (_WILDCARD, _LITERAL)
        ]

    return wire.until_settled(attempt, what="asking for ACLs on transactional ids")


def _nothing_shown(wire: Wire, node_id: int, ids: list[str]) -> str | None:
    """One of these that may not be described, as this broker has it."""

    def attempt() -> str | None:
        for batch in batches(ids):
            answer = wire.send_to_broker(node_id, DescribeTransactionsRequest(transactional_ids=list(batch)))
            for row in answer.transaction_states:
                if row.error_code == errors.TransactionalIdAuthorizationFailedError.errno:
                    return str(row.transactional_id)
                if row.error_code not in _ALLOWED:
                    retry.check(row.error_code, operation="DESCRIBE", resource="TransactionalId *")
        return None

    return wire.until_settled(attempt, what="asking which ids may be described")


def _hidden(why: str, *, remedy: str = REMEDY) -> AccessError:
    return AccessError(
        f"brokers leave out of a listing what one may not describe, and other applications' transactions may be: {why}",
        remedy=remedy,
    )
