"""Whether a login may describe every transactional id that there can be: then no listing leaves one out.

Rule: hanging-is-proven.

Brokers leave out of a listing what one may not describe, without a word. For ids of ours it is enough to describe one
more (:mod:`.listing_rights`); of other applications' nobody here knows the names. But Kafka's own authorizer goes by
ACLs alone, and tells ids apart only by the names and prefixes in them. So one id of each kind is tried: one that no
ACL names, one behind each prefix, each name itself. Where all may be described, every id may.

That asks for DESCRIBE on the Cluster (the ACLs) and DESCRIBE_CONFIGS on the Cluster (which authorizer it is). Another
authorizer may go by anything, so there nothing is proven. Each broker is asked: each filters its own listing, by what
it knows of ACLs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka.protocol.admin.acl import DescribeAclsRequest
from kafka.protocol.admin.transactions import DescribeTransactionsRequest

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka import retry
from airflow_kafka_eos.kafka.ending import batches
from airflow_kafka_eos.kafka.partitions import Partitions
from airflow_kafka_eos.kafka.wire import Wire

AUTHORIZER = "authorizer.class.name"
#: What decides by ACLs alone; an empty name: nothing is refused to anybody.
_BY_ACLS = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_TRANSACTIONAL_ID, _ANY, _LITERAL = 5, 1, 3
_WILDCARD = "*"
_CLUSTER_AUTHORIZATION_FAILED, _SECURITY_DISABLED = 31, 54
_REFUSED = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
#: The right is looked at first, these come behind it: 14 to 16 are of the coordinator, 105 is "not found".
_ALLOWED = frozenset({0, 14, 15, 16, 105})

#: Characters that an id may end in, those that few names have first.
_ENDS = (*range(0x7E, 0x20, -1), *range(0xA1, 0xD800))

#: The rights that show all there is.
REMEDY = (
    "Grant the principal of the Kafka connection DESCRIBE on TransactionalId * (and no DENY on any), on Topic "
    "__transaction_state and on the Cluster, and DESCRIBE_CONFIGS on the Cluster, all of which only read; or look with "
    "a login that has them (docs/acls.md)"
)


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
    brokers = Partitions(wire).broker_configs([AUTHORIZER])
    shown = {settings.get(AUTHORIZER) for settings in brokers.values()}
    if None in shown:
        return _hidden("the brokers do not show which authorizer they have, DESCRIBE_CONFIGS on the Cluster is missing")
    for name in sorted(filter(None, shown - {"", _BY_ACLS})):
        return _hidden(
            f"the brokers' authorizer {name} is not Kafka's own, and nobody can tell what it hides",
            remedy="Ask who runs the cluster whose the transaction is: from here it cannot be found out",
        )
    for node_id in sorted(brokers):
        patterns = _patterns(wire, node_id)
        if patterns is None:
            return _hidden("the brokers do not show their ACLs, DESCRIBE on the Cluster is missing")
        refused = _refused(wire, node_id, one_of_each(patterns))
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
        if answer.error_code == _SECURITY_DISABLED:
            return []
        if answer.error_code == _CLUSTER_AUTHORIZATION_FAILED:
            return None
        retry.check(answer.error_code, operation="DESCRIBE", resource="Cluster")
        return [
            Pattern(r.resource_name, r.pattern_type != _LITERAL)
            for r in answer.resources
            if (r.resource_name, r.pattern_type) != (_WILDCARD, _LITERAL)
        ]

    return retry.until_settled(attempt, what="asking for ACLs on transactional ids", timeout_s=wire.timeout_s)


def _refused(wire: Wire, node_id: int, ids: list[str]) -> str | None:
    """One of these that may not be described, as this broker has it."""

    def attempt() -> str | None:
        for batch in batches(ids):
            answer = wire.send_to_broker(node_id, DescribeTransactionsRequest(transactional_ids=list(batch)))
            for row in answer.transaction_states:
                if row.error_code == _REFUSED:
                    return str(row.transactional_id)
                if row.error_code not in _ALLOWED:
                    retry.check(row.error_code, operation="DESCRIBE", resource="TransactionalId *")
        return None

    return retry.until_settled(attempt, what="asking which ids may be described", timeout_s=wire.timeout_s)


def _hidden(why: str, *, remedy: str = REMEDY) -> AccessError:
    return AccessError(
        f"brokers leave out of a listing what one may not describe, and other applications' transactions may be: {why}",
        remedy=remedy,
    )
