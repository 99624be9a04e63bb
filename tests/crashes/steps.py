"""Every step between begin and clean-up at which a process is killed: one table, read by the tests and the victim.

A step names a function of ours and a side of it. The victim is killed by SIGKILL at the n-th call in its phase: no
``finally``, no ``atexit``, no socket closed in order, as with a lost machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from airflow_kafka_eos.load import TransactionScope

ARROW, CONFLUENT = "arrow", "confluent"


class When(str, Enum):
    """On which side of the call."""

    BEFORE = "before"
    #: a ledger's method: its statements have run, its database transaction is not committed
    WRITTEN = "written"
    AFTER = "after"


class Run(str, Enum):
    """What the victim is about to do."""

    #: a load from begin to clean-up
    LOAD = "load"
    #: prepare, then the clean-up of a run that failed before its decision
    SWEEP = "sweep"
    #: prepare and decide, then the clean-up of a run whose commit never came
    ROLL_FORWARD = "roll-forward"
    #: prepare, and prepare once more, as a retried task does
    RETRY = "retry"


#: a bomb is planted when its phase begins, and counts calls from there on
PHASES: dict[Run, tuple[str, ...]] = {
    Run.LOAD: ("prepare", "decide", "commit", "clean"),
    Run.SWEEP: ("prepare", "clean"),
    Run.ROLL_FORWARD: ("prepare", "decide", "clean"),
    Run.RETRY: ("prepare", "prepare again"),
}


@dataclass(frozen=True)
class Step:
    """:param target: ``module:Class.method`` or ``module:function``.
    :param slide: which of the five failure points of the slides "EOS Revisited" this is.
    :param scopes: where the step exists: scope ``load`` has one EndTxn, for example.
    :param writers: who writes. librdkafka's threads have nothing to do with the steps of ledger and commit: there it is
        tried only where what it has written is handed over or ended.
    """

    name: str
    phase: str
    target: str
    when: When
    nth: int = 1
    run: Run = Run.LOAD
    slide: int | None = None
    scopes: tuple[TransactionScope, ...] = (TransactionScope.TASK, TransactionScope.LOAD)
    writers: tuple[str, ...] = (ARROW,)


_LEDGER = "airflow_kafka_eos.ledger.ledger:Ledger."
_DECISIONS = "airflow_kafka_eos.ledger.decisions:"
_WRITER = "airflow_kafka_eos.kafka.producer.arrow.writer:ArrowWriter."
_SENDER = "airflow_kafka_eos.kafka.producer.arrow.sender:Sender."
_CONFLUENT = "airflow_kafka_eos.kafka.producer.confluent:"
_COORDINATOR = "airflow_kafka_eos.kafka.admin.coordinator:Coordinator."
_PARTITIONS = "airflow_kafka_eos.kafka.admin.partitions:Partitions."
_LOOKED = "airflow_kafka_eos.protocol.stages.commit:judge_decided"
#: just before an EndTxn is handed to the connection, and when its answer is there and nobody has read it
_SENDING = "kafka.protocol.producer.transaction:EndTxnRequest.with_header"
_ANSWERED = "airflow_kafka_eos.kafka.admin.end_transactions:meaning_of"
_TASK = (TransactionScope.TASK,)
_LOAD = (TransactionScope.LOAD,)
_BOTH = (ARROW, CONFLUENT)
BEFORE, WRITTEN, AFTER = When.BEFORE, When.WRITTEN, When.AFTER


def _ledger(
    method: str,
    phase: str,
    run: Run = Run.LOAD,
    slides: dict[When, int] | None = None,
    writers: tuple[str, ...] = (ARROW,),
) -> list[Step]:
    """The three sides of one ledger transaction."""
    names = {
        BEFORE: "before {} is written",
        WRITTEN: "{} written, not committed",
        AFTER: "after {} is committed",
    }
    where = phase if run is Run.LOAD else run.value
    return [
        Step(
            f"{where}: " + names[w].format(method),
            phase,
            _LEDGER + method,
            w,
            run=run,
            slide=(slides or {}).get(w),
            writers=writers,
        )
        for w in When
    ]


def _by_librdkafka(name: str, target: str, when: When, nth: int = 1, run: Run = Run.LOAD) -> Step:
    """Where it cannot do the other scope, nor two-phase commit."""
    phase = "prepare" if run is Run.LOAD else "prepare again"
    return Step(
        f"librdkafka, {phase}: {name}",
        phase,
        _CONFLUENT + target,
        when,
        nth,
        run,
        scopes=_TASK,
        writers=(CONFLUENT,),
    )


STEPS: tuple[Step, ...] = (
    # --- prepare
    *_ledger("begin", "prepare"),
    *_ledger("submit", "prepare"),
    Step(
        "prepare: the driver has its producer id",
        "prepare",
        "tests.protocol.world:initialise",
        AFTER,
        scopes=_LOAD,
    ),
    Step("prepare: before a writer opens", "prepare", _WRITER + "open", BEFORE),
    Step("prepare: a writer is open, nothing is written", "prepare", _WRITER + "open", AFTER),
    Step("prepare: records are on their way", "prepare", _SENDER + "flush", BEFORE, slide=1),
    Step("prepare: records are acknowledged, not confirmed", "prepare", _SENDER + "flush", AFTER),
    Step("prepare: one of two writers is prepared", "prepare", _WRITER + "prepare", AFTER),
    Step("prepare: the second writer's records are on their way", "prepare", _SENDER + "flush", BEFORE, 2),
    Step("prepare: all is prepared, nothing is reported", "prepare", _WRITER + "prepare", AFTER, 2, slide=2),
    *_ledger("mark_prepared", "prepare", writers=_BOTH),
    # --- decide
    Step("decide: the brokers confirmed the manifest", "decide", _COORDINATOR + "describe", AFTER),
    *_ledger("decide_commit", "decide", slides={WRITTEN: 3, AFTER: 4}),
    # --- commit
    Step("commit: before the first EndTxn", "commit", _SENDING, BEFORE),
    Step("commit: between two EndTxn", "commit", _SENDING, BEFORE, 2, scopes=_TASK, writers=_BOTH),
    Step("commit: the first EndTxn's answer is lost", "commit", _ANSWERED, BEFORE),
    Step("commit: the last EndTxn's answer is lost", "commit", _ANSWERED, BEFORE, 2, scopes=_TASK),
    Step("commit: all EndTxn are answered", "commit", _COORDINATOR + "end_many", AFTER, slide=5),
    Step("commit: before a log is read", "commit", _PARTITIONS + "markers_of", BEFORE),
    Step("commit: the logs are read", "commit", _PARTITIONS + "markers_of", AFTER),
    Step("commit: an outcome is judged", "commit", _LOOKED, AFTER),
    *_ledger("record_and_close", "commit"),
    Step("commit: outcomes written, COMMITTED not", "commit", _DECISIONS + "record_committed", BEFORE),
    Step("commit: COMMITTED written, not committed", "commit", _DECISIONS + "record_committed", AFTER),
    # --- clean-up of a load that arrived
    *_ledger("make_undecidable", "clean"),
    # --- clean-up of a load that was never decided
    *_ledger("make_undecidable", "clean", Run.SWEEP),
    Step("sweep: open ids are listed", "clean", _COORDINATOR + "list_open", AFTER, run=Run.SWEEP),
    Step("sweep: they are described", "clean", _COORDINATOR + "describe", AFTER, run=Run.SWEEP),
    Step("sweep: before the first abort", "clean", _SENDING, BEFORE, run=Run.SWEEP),
    Step("sweep: between two aborts", "clean", _SENDING, BEFORE, 2, run=Run.SWEEP, scopes=_TASK, writers=_BOTH),
    Step("sweep: the first abort's answer is lost", "clean", _ANSWERED, BEFORE, run=Run.SWEEP),
    Step("sweep: all aborts are answered", "clean", _COORDINATOR + "end_many", AFTER, run=Run.SWEEP),
    *_ledger("record_swept", "clean", Run.SWEEP),
    # --- clean-up of a load that is decided and was not committed
    Step("roll-forward: before the first EndTxn", "clean", _SENDING, BEFORE, run=Run.ROLL_FORWARD),
    Step(
        "roll-forward: between two EndTxn", "clean", _SENDING, BEFORE, 2, run=Run.ROLL_FORWARD, scopes=_TASK
    ),
    Step("roll-forward: the first EndTxn's answer is lost", "clean", _ANSWERED, BEFORE, run=Run.ROLL_FORWARD),
    *_ledger("record_and_close", "clean", Run.ROLL_FORWARD),
    Step(
        "roll-forward: COMMITTED written, not committed",
        "clean",
        _DECISIONS + "record_committed",
        AFTER,
        run=Run.ROLL_FORWARD,
    ),
    # --- a retried prepare
    *_ledger("submit", "prepare again", Run.RETRY),
    Step("retry: before the older attempt is aborted", "prepare again", _SENDING, BEFORE, run=Run.RETRY),
    Step("retry: the older attempt's abort is not learnt", "prepare again", _ANSWERED, BEFORE, run=Run.RETRY),
    Step(
        "retry: one of two new writers is prepared",
        "prepare again",
        _WRITER + "prepare",
        AFTER,
        run=Run.RETRY,
    ),
    *_ledger("mark_prepared", "prepare again", Run.RETRY),
    # --- prepare, by librdkafka: its own threads send and initialise
    _by_librdkafka("no producer is there yet", "_configuration", BEFORE),
    _by_librdkafka("a producer is there, and has not learnt its identity", "ConfluentWriter._assigned", BEFORE),
    _by_librdkafka("a writer is open, nothing is written", "ConfluentWriter.open", AFTER),
    _by_librdkafka("records are on their way", "ConfluentWriter.prepare", BEFORE),
    _by_librdkafka("records are acknowledged, not confirmed", "confirm", BEFORE),
    _by_librdkafka("one of two writers is prepared", "ConfluentWriter.prepare", AFTER),
    _by_librdkafka("the second writer's records are on their way", "ConfluentWriter.prepare", BEFORE, 2),
    _by_librdkafka("all is prepared, nothing is reported", "ConfluentWriter.prepare", AFTER, 2),
    _by_librdkafka("one of two new writers is prepared", "ConfluentWriter.prepare", AFTER, run=Run.RETRY),
)

BY_NAME = {step.name: step for step in STEPS}
