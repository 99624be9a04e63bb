"""What a principal may do, set as a whole: real ACLs, and the certainty that the broker goes by them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from kafka.protocol.admin.acl import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.sandbox.kafka import LocalKafka

_RESOURCES = {"Topic": 2, "Cluster": 4, "TransactionalId": 5}
#: 15 is KIP-939's, which kafka-python does not name
_OPERATIONS = {"READ": 3, "WRITE": 4, "ALTER": 7, "DESCRIBE": 8, "DESCRIBE_CONFIGS": 10, "TWO_PHASE_COMMIT": 15}
_ANY, _LITERAL, _PREFIXED = 1, 3, 4
_DENY, _ALLOW = 2, 3


class Right(NamedTuple):
    """One ACL, as people write it; ``name`` ends in ``*`` where it is prefixed, and is ``*`` for all."""

    operation: str
    resource: str
    name: str
    is_denied: bool = False

    def numbers(self) -> tuple[int, str, int, int, int]:
        prefixed = self.name.endswith("*") and self.name != "*"
        name, pattern = (self.name[:-1], _PREFIXED) if prefixed else (self.name, _LITERAL)
        permission = _DENY if self.is_denied else _ALLOW
        return _RESOURCES[self.resource], name, pattern, _OPERATIONS[self.operation], permission


def allow_exactly(plain: LocalKafka, principal: str, rights: Iterable[Right]) -> None:
    """Grant these and take away all others; returns when the broker's authorizer knows."""
    wanted = {right.numbers() for right in rights}
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": plain.bootstrap_servers})) as wire:
        now = _rights(wire, principal)
        if missing := wanted - now:
            acl = CreateAclsRequest.AclCreation
            answer = wire.send_to_any(
                CreateAclsRequest(
                    creations=[
                        acl(
                            resource_type=kind,
                            resource_name=name,
                            resource_pattern_type=pattern,
                            principal=principal,
                            host="*",
                            operation=operation,
                            permission_type=permission,
                        )
                        for kind, name, pattern, operation, permission in missing
                    ]
                )
            )
            assert {r.error_code for r in answer.results} == {0}, answer
        if surplus := now - wanted:
            filters = DeleteAclsRequest.DeleteAclsFilter
            answer = wire.send_to_any(
                DeleteAclsRequest(
                    filters=[
                        filters(
                            resource_type_filter=kind,
                            resource_name_filter=name,
                            pattern_type_filter=pattern,
                            principal_filter=principal,
                            host_filter=None,
                            operation=operation,
                            permission_type=permission,
                        )
                        for kind, name, pattern, operation, permission in surplus
                    ]
                )
            )
            assert {r.error_code for r in answer.filter_results} == {0}, answer
        until = time.monotonic() + 30
        while _rights(wire, principal) != wanted:
            assert time.monotonic() < until, "the ACLs do not arrive at the broker"
            time.sleep(0.02)


def _rights(wire: Wire, principal: str) -> set[tuple[int, str, int, int, int]]:
    answer = wire.send_to_any(
        DescribeAclsRequest(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=principal,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
    )
    assert answer.error_code == 0, answer
    return {
        (r.resource_type, r.resource_name, r.pattern_type, acl.operation, acl.permission_type)
        for r in answer.resources
        for acl in r.acls
    }
