"""What a load is, its states and the moves between them, verdicts, and the words of its settings (enums)."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Self, assert_never

from airflow_kafka_eos.errors import (
    ConfigurationError,
    InvalidNameError,
    KafkaEosError,
    UndecidableError,
    nearest,
)

DEFAULT_NAMESPACE = "airflow"


@dataclass(frozen=True)
class LoadIdentity:
    """One unit that must arrive exactly once: (namespace, load name, key).

    It never contains a try number, a map index position or a worker: whoever retries, clears or backfills the
    same load must meet the same identity.
    """

    namespace: str
    name: str
    key: str

    def __post_init__(self) -> None:
        for field in ("namespace", "name", "key"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise InvalidNameError(
                    f"the load's {field} is {value!r}, it must be a text of one or more characters",
                    remedy=f"Set {'load_key' if field == 'key' else field} to what names this load",
                )
            if "\x00" in value:
                raise InvalidNameError(
                    f"the load's {field} {value!r} contains a NUL character",
                    remedy="Databases refuse it: remove it from the name",
                )
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as e:
                raise InvalidNameError(
                    f"the load's {field} {value!r} is not valid Unicode", remedy="Remove lone surrogates from the name"
                ) from e

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.key}"

    @property
    def in_command(self) -> str:
        """As commands take it, to be pasted into a shell: behind ``airflow-kafka-eos cleanup`` or the like."""
        return shlex.join([self.name, self.key, "--namespace", self.namespace])


def name_in_command(load: LoadIdentity) -> str:
    """As ``airflow-kafka-eos cursors show`` takes a load's name; with its key it is ``in_command``."""
    return shlex.join([load.name, "--namespace", load.namespace])


class Verdict(str, Enum):
    """What a decision says. Recorded once per attempt; no decision means abort."""

    COMMIT = "commit"
    ABORT = "abort"

    @property
    def is_commit(self) -> bool:
        """As requests and the ledger's rows have it: a truth value, not a name."""
        match self:
            case Verdict.COMMIT:
                return True
            case Verdict.ABORT:
                return False
        assert_never(self)


class Choice(str, Enum):
    """A setting with a few values that an author writes as a text."""

    @classmethod
    def read(cls, field: str, text: object) -> Self:
        """The value that a text names.

        :raises ConfigurationError: naming the field, the text, and the value that is nearest to it.
        """
        known = [choice.value for choice in cls]
        if text in known:
            return cls(text)
        near = nearest(str(text), known)
        raise ConfigurationError(
            f"{field} is {text!r}, it can be {', '.join(known)}",
            remedy=(f"Did you mean {near}" if near else f"Set {field} to one of them") + cls.elsewhere(),
        )

    @classmethod
    def elsewhere(cls) -> str:
        """What people look for here, and is set otherwise: the end of the remedy."""
        return ""


# the same as literals, for type checkers and completion; tests hold them together with the classes below
ScopeText = Literal["task", "load"]
NamingText = Literal["pooling", "incrementing"]
TwoPhaseCommitText = Literal["auto", "required", "off"]
OnCommittedText = Literal["skip", "fail", "reload"]
WriterText = Literal["auto", "arrow", "confluent"]
EngineText = Literal["spark", "arrow"]


class Engine(Choice):
    """What runs the author's job and prepares the load."""

    #: a Spark application, by spark-submit
    SPARK = "spark"
    #: prepare's own process: a stream of Arrow record batches
    ARROW = "arrow"

    @classmethod
    def elsewhere(cls) -> str:
        return ". A Spark Connect server is named by spark_conn_id, an operator of your own by submit="


class TransactionScope(Choice):
    """What one Kafka transaction covers."""

    #: one transaction per Spark task attempt: Spark may retry and speculate
    TASK = "task"
    #: one transaction for the whole load, written by all tasks together: one EndTxn decides all of it
    LOAD = "load"


class TransactionNaming(Choice):
    """FLIP-511's naming strategies: which transactional ids an attempt writes with."""

    #: ids of a slot that the ledger leases, used again by later loads of the name: their number is bounded
    POOLING = "pooling"
    #: ids of the attempt's own, never used again: brokers keep each for transactional.id.expiration.ms
    INCREMENTING = "incrementing"


class TwoPhaseCommit(Choice):
    """Whether transactions are initialised with KIP-939's Enable2Pc: the broker never ends them by itself."""

    #: where the broker grants it; else a timeout
    AUTO = "auto"
    #: or nothing is written
    REQUIRED = "required"
    #: never asked for
    OFF = "off"


class OnCommitted(Choice):
    """What ``begin`` does with a load that is committed already (rule: one-key-loads-once)."""

    #: passes as done, nothing is written again
    SKIP = "skip"
    #: fails, where it was not this run's own group that committed it
    FAIL = "fail"
    #: writes it once more, as a load with a key of its own
    RELOAD = "reload"


class WriterName(Choice):
    """What writes to Kafka."""

    #: arrow, unless the broker or the Kafka settings do not allow it
    AUTO = "auto"
    ARROW = "arrow"
    CONFLUENT = "confluent"


class LoadState(str, Enum):
    """States of a load. COMMITTING is the point of no return: from there recovery only rolls forward."""

    PREPARING = "PREPARING"
    PREPARED = "PREPARED"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"
    REPAIRING = "REPAIRING"
    IN_DOUBT = "IN_DOUBT"
    #: a person has chosen to leave it as it is: nothing rolls it forward any more
    GIVEN_UP = "GIVEN_UP"

    @property
    def is_decided(self) -> bool:
        """Behind a commit decision: such a load gets no new attempt (rule: one-key-loads-once)."""
        match self:
            case _S.COMMITTING | _S.COMMITTED | _S.REPAIRING | _S.IN_DOUBT | _S.GIVEN_UP:
                return True
            case _S.PREPARING | _S.PREPARED | _S.ABORTING | _S.ABORTED:
                return False
        assert_never(self)

    @property
    def is_ended(self) -> bool:
        """Nothing of it is expected to be open."""
        match self:
            case _S.COMMITTED | _S.ABORTED | _S.GIVEN_UP:
                return True
            case _S.PREPARING | _S.PREPARED | _S.ABORTING | _S.COMMITTING | _S.REPAIRING | _S.IN_DOUBT:
                return False
        assert_never(self)

    @property
    def is_unverified(self) -> bool:
        """Decided to be committed, and not there yet."""
        return self.is_decided and not self.is_ended

    @property
    def moves(self) -> frozenset[LoadState]:
        """States that may follow.

        Opening an attempt (-> PREPARING) makes the older undecided one undecidable in the same ledger transaction
        (rule: one-decision-per-load), so it may follow every undecided state.
        """
        match self:
            case _S.PREPARING:
                return frozenset({_S.PREPARING, _S.PREPARED, _S.ABORTING})
            case _S.PREPARED:
                return frozenset({_S.PREPARING, _S.COMMITTING, _S.ABORTING})
            case _S.ABORTING:
                return frozenset({_S.PREPARING, _S.ABORTED})
            case _S.ABORTED:
                return frozenset({_S.PREPARING})
            case _S.COMMITTING:
                return frozenset({_S.COMMITTED, _S.REPAIRING, _S.IN_DOUBT, _S.GIVEN_UP})
            case _S.REPAIRING:
                return frozenset({_S.COMMITTED, _S.IN_DOUBT, _S.GIVEN_UP})
            case _S.IN_DOUBT:  # a person may mend what was in doubt and let recovery look at the log again
                return frozenset({_S.COMMITTED, _S.REPAIRING, _S.GIVEN_UP})
            case _S.COMMITTED | _S.GIVEN_UP:
                return frozenset()
        assert_never(self)


_S = LoadState
#: What ends an open transaction that no command of ours may end: the ledger does not know whose it is.
END_BY_HAND = (
    "`kafka-transactions.sh --bootstrap-server … forceTerminateTransaction --transactionalId ID`, with the tools of "
    "Kafka 4.1 or newer"
)
_ANOTHER_KEY = "load the same data under another load_key, only for readers that can tell the two apart"
#: What a person is told of a load that cannot be completed, in this order: when it is given up, a commit may still be
#: under way, an EndTxn that is sent again for a minute, or end markers that a coordinator has still to write.
GIVE_UP = (
    "give the load up, by `airflow-kafka-eos loads give-up`, which says what of it is open; end that, by "
    "`airflow-kafka-eos transactions force-terminate` or `airflow-kafka-eos transactions hanging --running-longer-than "
    "0s --abort`, and run `airflow-kafka-eos cleanup NAME KEY` until it finds the load clean, for until then more of "
    "it may become visible. Only then compare the topic with the source"
)
OR_GIVE_UP = f"Or {GIVE_UP}, and write what is missing by hand; `loads show` names it"
#: What comes behind GIVE_UP where the whole load may be written instead.
WRITE = f"live with what is visible, write what is missing by hand, or {_ANOTHER_KEY}"
#: And of one that is given up.
STAYS_GIVEN_UP = (
    "It stays as it is, and its key is not loaded again. Once `airflow-kafka-eos cleanup NAME KEY` finds it clean, "
    f"compare the topic with what `airflow-kafka-eos loads show` names: {WRITE}"
)
#: What a sweep does to a load that is REPAIRING: whoever repairs is taken for dead.
REPAIR_THROWN_AWAY = (
    "It is REPAIRING: commit, or prepare, may be writing again what it has lost. That is thrown away, and has to be "
    "written once more"
)
#: Of loads that are not through.
UNENDED = tuple(state for state in LoadState if not state.is_ended)


def filled_in(remedy: str, load: LoadIdentity) -> str:
    """A remedy whose commands name the load, in the place of NAME KEY."""
    return remedy.replace("NAME KEY", load.in_command)


def fill_in(error: KafkaEosError, load: LoadIdentity) -> None:
    """The same for an error's remedy, where the error is about that load."""
    if error.load == str(load):
        error.remedy = filled_in(error.remedy, load)


def check_move(load: LoadIdentity, old: LoadState, new: LoadState) -> None:
    """Refuse a move that the state machine does not have.

    :raises UndecidableError: naming both states.
    """
    if new not in old.moves:
        raise UndecidableError(
            f"a load in state {old.value} cannot become {new.value}",
            remedy="Look at the load's attempts in the ledger; reload a committed load under a load_key of its own",
            load=str(load),
        )
