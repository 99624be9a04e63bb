"""A transaction that hangs, or may: whose it is, whether that is proven, and what a person is to do. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError, UndecidableError
from airflow_kafka_eos.kafka.hanging import OpenProducer
from airflow_kafka_eos.ledger.rows import AttemptRow


class Whose(str, Enum):
    """Who may end it."""

    #: the ledger knows it, and it is not, or no more, part of a decision that is to be completed: it may be ended here
    OURS = "ours"
    #: its attempt may still be committed: make it undecidable first (cleanup)
    UNDECIDED = "ours, undecided"
    #: its load is decided to be committed, and not verified yet: commit or recover it
    DECIDED = "ours, decided"
    #: another application's, or another deployment's: only shown, never ended (rule: only-our-ids)
    FOREIGN = "foreign"


@dataclass(frozen=True)
class HangingTransaction:
    """A transaction that holds back a partition's readers, and that no coordinator is seen to end.

    :param idle_ms: since its last record, by the record's own timestamp against this machine's clock: an application
        dates its records as it likes, and may be at work.
    :param transactional_id: as far as anybody knows.
    :param attempt: the ledger's, where it is ours.
    :param doubt: why it may be alive all the same, and what would tell; None: it is proven to hang.
    """

    producer: OpenProducer
    transactional_id: str | None
    why: str
    idle_ms: int
    whose: Whose
    attempt: AttemptRow | None = None
    doubt: KafkaEosError | None = None

    @property
    def is_proven(self) -> bool:
        return self.doubt is None

    def __str__(self) -> str:
        p = self.producer
        return f"{p.partition}: producer {p.state} since offset {p.txn_start_offset} ({self.why})"


def what_to_do(hanging: HangingTransaction, bootstrap_servers: str) -> str:
    """For people: what to make sure of first, and what ends it then. No I/O.

    Until its application is stopped, a hanging transaction of another one is not safe to end either: the application's
    next transaction under that producer id takes in what is open, and the marker would abort the records of both.
    """
    p = hanging.producer
    if hanging.doubt is not None:
        return f"It may be an application's that is at work: end nothing. {hanging.doubt.remedy.rstrip('. ')}"
    if hanging.whose is Whose.OURS:
        return f"airflow-kafka-eos transactions hanging --topic {p.partition.topic} --abort ends it"
    if hanging.whose is Whose.UNDECIDED:
        return "Make its attempt undecidable first: run cleanup for its load"
    if hanging.whose is Whose.DECIDED:
        return "Let its load be committed (loads recover): what its coordinator has forgotten is ended by that"
    command = (
        f"kafka-transactions.sh --bootstrap-server {bootstrap_servers} abort --topic {p.partition.topic} "
        f"--partition {p.partition.partition} --start-offset {p.txn_start_offset}"
    )
    if hanging.transactional_id is None:
        return f"No application can go on with it. Somebody with ALTER on the Cluster ends it: {command}"
    return (
        f"Not as long as an application uses transactional id {hanging.transactional_id}: its next transaction takes "
        "in what is open, and would be aborted with it. Its owner stops it, and looks again: if the same is shown "
        f"then, somebody with ALTER on the Cluster ends it: {command}"
    )


def refuse_unless_ours(hanging: HangingTransaction) -> None:
    """
    :raises ConfigurationError: it is foreign (rule: only-our-ids).
    :raises UndecidableError: it is ours, and undecided or decided.
    """
    if hanging.whose is Whose.OURS:
        return
    if hanging.whose is Whose.FOREIGN:
        raise ConfigurationError(
            f"the hanging transaction {hanging} is not of this ledger and namespace: it is never ended here",
            remedy=what_to_do(hanging, "…"),
        )
    raise UndecidableError(
        f"the hanging transaction {hanging} is {hanging.whose.value}",
        remedy=what_to_do(hanging, "…"),
        load=str(hanging.attempt.load) if hanging.attempt else None,
        attempt=hanging.attempt.number if hanging.attempt else None,
        transactional_id=hanging.transactional_id,
    )
