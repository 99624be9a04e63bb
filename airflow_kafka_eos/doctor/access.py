"""ACLs on transactional ids, which were tried with an id that never has a transaction. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_kafka_eos.doctor.commands import Commands
from airflow_kafka_eos.doctor.finding import Finding, Judgement, Unknown
from airflow_kafka_eos.doctor.ids import all_of
from airflow_kafka_eos.doctor.seen import Asked, ClusterSeen

_MEANS = {
    "DESCRIBE": "Transactions of ours are left out of listings without a word: cleanup refuses to work",
    "WRITE": "Transactions can neither be begun nor ended",
}


def check(seen: ClusterSeen, asked: Asked, commands: Commands) -> Iterator[Finding]:
    """DESCRIBE and WRITE on the namespace's ids; ALTER on the cluster."""
    prefix = all_of(asked.namespace)
    for operation, missing in (("DESCRIBE", seen.may_describe), ("WRITE", seen.may_write)):
        id, subject = f"acl-transactional-id-{operation.lower()}", f"transactional ids {prefix}*"
        if missing is None:
            yield Judgement(id, subject, f"{operation} is granted").ok("As it must be")
        elif missing.is_refused:
            remedy = commands.acl("WRITE", "transactional-id", prefix, prefixed=True)
            yield Judgement(id, subject, missing.reason).error(_MEANS[operation], remedy)
        else:
            yield Finding.not_seen(id, subject, missing)


    yield _alter(seen, commands)


def _alter(seen: ClusterSeen, commands: Commands) -> Finding:
    id, subject = "acl-cluster-alter", "cluster"
    rights = seen.cluster_rights
    if isinstance(rights, Unknown):
        return Finding.not_seen(id, subject, rights)
    found = Judgement(id, subject, f"allowed: {', '.join(sorted(rights)) or 'nothing'}")
    if rights & {"ALTER", "CLUSTER_ACTION"}:
        return found.ok("What a restarted broker has forgotten to end is ended by commit and cleanup")
    return found.warning(
        "A broker that is started again may forget end markers: readers then wait until somebody who has ALTER (or "
        "CLUSTER_ACTION) runs `loads recover`, or `transactions hanging --abort`. Nothing else needs it",
        commands.acl("ALTER", "cluster"),
    )


def refused_configs(commands: Commands, resource: str, name: str = "") -> Unknown:
    """Brokers answer a question for settings that one may not see with nothing."""
    shown = f"{resource.capitalize()} {name}".strip()
    return Unknown(
        f"DESCRIBE_CONFIGS on {shown} is missing", commands.acl("DESCRIBE_CONFIGS", resource, name), is_refused=True
    )
