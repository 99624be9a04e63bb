"""What an ACL is called where rights are actions of an IAM policy: Amazon MSK. No I/O.

Source: docs/acls.md, from AWS's "Semantics of IAM authorization policy actions and resources". Not tried on an MSK.
"""

from __future__ import annotations

from collections.abc import Sequence

#: By operation and resource. There an action includes no other, so that what Kafka implies is named too.
ACTIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("WRITE", "transactional-id"): ("AlterTransactionalId", "DescribeTransactionalId"),
    ("DESCRIBE", "transactional-id"): ("DescribeTransactionalId",),
    ("WRITE", "topic"): ("WriteData", "DescribeTopic"),
    ("READ", "topic"): ("ReadData", "DescribeTopic"),
    ("DESCRIBE", "topic"): ("DescribeTopic",),
    ("DESCRIBE_CONFIGS", "topic"): ("DescribeTopicDynamicConfiguration",),
    ("DESCRIBE", "cluster"): ("DescribeCluster",),
    ("DESCRIBE_CONFIGS", "cluster"): ("DescribeClusterDynamicConfiguration",),
    ("ALTER", "cluster"): ("AlterCluster", "DescribeCluster"),
    # there is none for it
    ("TWO_PHASE_COMMIT", "transactional-id"): (),
}


def statement(operations: Sequence[str], resource: str, name: str, *, prefixed: bool) -> str:
    """What to allow in the policy, as a sentence.

    :param operations: as Kafka's protocol names them.
    :param resource: ``topic``, ``transactional-id`` or ``cluster``.
    """
    wanted = {operation: ACTIONS[operation, resource] for operation in operations}
    where = f"{resource}/CLUSTER/CLUSTER-UUID" + (f"/{name}{'*' if prefixed else ''}" if name else "")
    actions = dict.fromkeys(f"kafka-cluster:{action}" for some in wanted.values() for action in some)
    lacks = [f"MSK has nothing for {operation}" for operation, some in wanted.items() if not some]
    allow = [f"In the IAM policy of this login allow {', '.join(actions)} on {where}"] if actions else []
    return "; ".join([*lacks, *allow])
