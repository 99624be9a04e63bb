"""What prepare and collect have in common: what is written and how, the attempt before it, and the manifest behind it.

Between the two an application writes the attempt: spark-submit or this very process (:mod:`.prepare`), or an operator
of the author's in a task of its own (:mod:`.own_submitter`), whose manifest another task reads (:mod:`.collect`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_never

from airflow.providers.common.compat.sdk import TaskDeferred, redact

from airflow_kafka_eos import position
from airflow_kafka_eos.arguments import (
    Duration,
    check_bool,
    check_job_or_sql,
    check_json,
    check_text,
    check_topics,
    check_whole_number,
    duration,
    shown,
)
from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.cursor import Cursor, named, range_of_conf
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.load import (
    NamingText,
    ScopeText,
    TransactionNaming,
    TransactionScope,
    TwoPhaseCommit,
    TwoPhaseCommitText,
    Verdict,
    WriterName,
    WriterText,
)
from airflow_kafka_eos.naming import MAX_IDS_OF_NAME, MAX_IDS_OF_NAMESPACE
from airflow_kafka_eos.operators.asked_for import (
    asked_before,
    asked_for_something_else,
    digest_of,
    follow_from_run,
    sha256_of,
)
from airflow_kafka_eos.operators.base import (
    LoadOperator,
    Step,
    check_no_sibling,
    overridden,
    owner_index,
    owner_of,
)
from airflow_kafka_eos.operators.decide import DecideLoadOperator, decide_at_once
from airflow_kafka_eos.operators.submitting import manifest_store, tell_superseded
from airflow_kafka_eos.reasons import reason_of
from airflow_kafka_eos.spark.formats.settings import FormatText, ValueFormat, ValueFormatArguments
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from airflow_kafka_eos.hooks import Resolved
    from airflow_kafka_eos.ledger.rows import AttemptRow, RangeRow
    from airflow_kafka_eos.manifest import AttemptRef, Manifest
    from airflow_kafka_eos.protocol.repair.reprepare import Repreparation
    from airflow_kafka_eos.protocol.session import Session
    from airflow_kafka_eos.protocol.stages.take_range import Wanted
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

#: What a coordinator shows for "none"; see ApplicationSpec.
LONGEST_HOLD_TIME = timedelta(milliseconds=TWO_PHASE_TIMEOUT_MS)


@dataclass(frozen=True)
class Taken:
    """The attempt that one application is to write; or the decided one, with what it has lost since, if that is gone.

    :param ref: what is written: the attempt, or repairs of the decided one.
    :param again: what a decided attempt has lost, and is to be prepared again.
    :param warned: what the task returns beside.
    :param spec: what the application is to do; empty where it was told before.
    """

    row: AttemptRow
    ref: AttemptRef
    again: Repreparation | None = None
    warned: Mapping[str, str] = field(default_factory=dict)
    spec: str = ""

    @property
    def is_done(self) -> bool:
        """Decided, and nothing is to be written (rule: one-key-loads-once)."""
        return self.row.verdict is Verdict.COMMIT and self.again is None


class PreparingOperator(LoadOperator):
    """A task that has a load's arguments, and reads the manifest of what an application has written.

    :param writer_deadline: a timedelta, or seconds: after this time no writer of this attempt opens a transaction any
        more (rule: writers-have-a-deadline). None: as ``[kafka_eos]`` says.
    """

    template_fields: Sequence[str] = (
        *LoadOperator.template_fields,
        *("job", "sql", "job_args", "topics", "manifest_dir", "since", "until"),
    )

    def __init__(
        self,
        *,
        topics: Sequence[str] | XComArg,
        job: str | XComArg | None = None,
        sql: str | XComArg | None = None,
        job_args: Mapping[str, Any] | XComArg | None = None,
        hold_time: Duration | None = None,
        writer_deadline: Duration | None = None,
        manifest_dir: str | None = None,
        scope: ScopeText = "task",
        two_phase_commit: TwoPhaseCommitText | None = None,
        writer: WriterText = "auto",
        transaction_naming: NamingText | None = None,
        max_transactional_ids: int | None = MAX_IDS_OF_NAME,
        max_transactional_ids_of_namespace: int | None = MAX_IDS_OF_NAMESPACE,
        value_format: FormatText | ValueFormatArguments = "raw",
        registry_conn_id: str | None = None,
        decide_at_once: bool = True,
        cursor: Cursor | None = None,
        **kwargs: Any,
    ) -> None:
        # and again when rendered: they may come from another task
        check_topics(topics)
        check_job_or_sql(job, sql)
        check_json(job_args)
        held = duration("hold_time", setting("hold_time", hold_time), below=LONGEST_HOLD_TIME)
        deadline = duration("writer_deadline", setting("writer_deadline", writer_deadline))
        check_whole_number("max_transactional_ids", max_transactional_ids, least=1)
        check_whole_number("max_transactional_ids_of_namespace", max_transactional_ids_of_namespace, least=1)
        check_text("manifest_dir", manifest_dir)
        check_text("registry_conn_id", registry_conn_id)
        check_bool("decide_at_once", decide_at_once)
        choices = (
            TransactionScope.read("scope", scope),
            TwoPhaseCommit.read("two_phase_commit", setting("two_phase_commit", two_phase_commit)),
            WriterName.read("writer", writer),
            TransactionNaming.read("transaction_naming", setting("transaction_naming", transaction_naming)),
        )
        check_writer(*choices[:3])
        check_cursor(cursor, sql=sql is not None, naming=choices[3])
        made = ValueFormat.of(value_format)
        super().__init__(**kwargs)
        self.value_format = made.to_mapping()
        self.registry_conn_id = registry_conn_id
        self.decide_at_once = decide_at_once
        self.cursor = cursor
        # rendered when they are read
        self.topics: Any = topics
        self.job: Any = job
        self.sql: Any = sql
        self.job_args: Any = job_args
        self.since: Any = None if cursor is None else cursor.since
        self.until: Any = None if cursor is None else cursor.until
        self._follow_from_run = follow_from_run(job, sql, job_args)
        self.hold_time, self.writer_deadline = held, deadline
        self.manifest_dir = optional("manifest_dir", manifest_dir)
        self.max_transactional_ids = max_transactional_ids
        self.max_transactional_ids_of_namespace = max_transactional_ids_of_namespace
        self.scope, self.two_phase_commit, self.writer, self.transaction_naming = (c.value for c in choices)

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Airflow's own; before it, what the arguments are made of can still be seen."""
        self._follow_from_run = follow_from_run(self.job, self.sql, self.job_args)
        super().render_template_fields(context, jinja_env)

    def take(
        self, context: Any, step: Step, resolved: Resolved, store: ManifestStore, *, has_fence: bool = False
    ) -> Taken:
        """Take an attempt for one application (rule: one-application-per-attempt), and tell drivers of older ones.

        Of a decided load nothing is written again (rule: one-key-loads-once), but for what was lost since and is gone
        from the log (docs/adr/0014): then the job runs again, and only the lost Spark partitions are written.

        :param has_fence: its writers see Kafka alone (:mod:`~airflow_kafka_eos.protocol.fences`).
        :raises KafkaEosError: what is asked for cannot be written, and no attempt is taken; or see
            :func:`~airflow_kafka_eos.protocol.stages.begin.submit`.
        """
        from airflow_kafka_eos.ledger.rows import RangeRow
        from airflow_kafka_eos.manifest import AttemptRef
        from airflow_kafka_eos.protocol.guards.id_caps import Caps
        from airflow_kafka_eos.protocol.repair.reprepare import open_repreparation
        from airflow_kafka_eos.protocol.stages.begin import reference, submit
        from airflow_kafka_eos.protocol.stages.take_range import check_range, check_same, take_range

        deadline_ms = time.time_ns() // 10**6 + int(self.writer_deadline.total_seconds() * 1000)
        spec = self._spec(store, deadline_ms)
        wanted = self._wanted(context)
        any_range = None if wanted is None else RangeRow(self.load_identity, 1, None, None, None, "")
        # tried before an attempt is taken: a typing error needs none
        spec(AttemptRef(self.load_identity, "0" * 10, 1), reads=any_range)
        owner = owner_of(context)
        with resolved.session(self.namespace) as session:
            if wanted is not None:
                check_range(session, self.load_identity, wanted)
            row = submit(
                session,
                self.load_identity,
                owner=owner,
                naming=TransactionNaming(self.transaction_naming),
                deadline_ms=deadline_ms,
                caps=Caps(self.max_transactional_ids, self.max_transactional_ids_of_namespace),
                arguments_sha256=self._arguments_sha256(),
                has_fence=has_fence,
            )
            step.attempt = row.number
            check_no_sibling(row, context)
            tell_superseded(session, store, row)
            taken = Taken(row, reference(session, row), warned=self.warned(session, row, owner))
            if row.verdict is not Verdict.COMMIT:
                if wanted is None:
                    return replace(taken, spec=spec(taken.ref))
                ref = replace(taken.ref, slot=None)
                found = take_range(
                    session, row, wanted, chosen=lambda number: store.until(replace(ref, attempt=number))
                )
                self.log.info("load %s: reads %s", taken.ref, shown_range(found))
                return replace(taken, spec=spec(taken.ref, reads=found))
            if wanted is not None:
                check_same(session, row, wanted.named)
            again = open_repreparation(session, row, by=owner, hold_time_ms=self._hold_time_ms)
            reads = None if again is None else session.ledger.range(row.load, row.number)
        if again is None:
            return taken
        wrote = again.attempt.writer  # it places rows without a key
        known = {writer.value for writer in WriterName}
        text = spec(
            again.ref,
            transaction_timeout_ms=again.timeout_ms,
            two_phase_commit=TwoPhaseCommit.OFF.value,
            writer=wrote if wrote in known else self.writer,
            reads=reads,
        )
        self.log.warning("%s: preparing Spark partitions %s again", again.ref, partitions_of(again))
        return replace(taken, ref=again.ref, again=again, spec=text)

    def was_decided(self, step: Step, taken: Taken) -> dict[str, Any]:
        """What a task returns that has nothing to write."""
        row = taken.row
        by = f"decided to be committed before, by {row.decided_by} at {row.decided_at}"
        step.done(row.load, f"{by}: nothing is written again")
        return {"load": str(row.load), "attempt": row.number, "verdict": Verdict.COMMIT.value, **taken.warned}

    @contextmanager
    def giving_up(
        self, resolved: Resolved, taken: Taken, *, but_for: type[BaseException] = TaskDeferred
    ) -> Iterator[None]:
        """Around an application that prepares again, and the reading of its manifest: nothing of it stays open, where
        it fails. The ledger first, then Kafka; without a manifest nobody can decide it.

        :param but_for: what is no failure of it: it goes on elsewhere, or there is another try for the same repair.
        """
        from airflow_kafka_eos.protocol.repair.reprepare import abandon_all

        try:
            yield
        except but_for:
            raise
        except BaseException as e:
            if taken.again is not None:
                try:
                    with resolved.session(self.namespace) as session:
                        abandon_all(session, taken.again, str(redact(reason_of(e, resolved.secrets))))
                except KafkaEosError as left:
                    self.log.warning("what %s has open is left to cleanup: %s", taken.ref, left)
            raise

    def record(
        self, context: Any, step: Step, resolved: Resolved, store: ManifestStore, taken: Taken, manifest: Manifest
    ) -> dict[str, Any]:
        """Tell the ledger what was prepared, and decide it where nothing stands between; returns the task's result.

        What was prepared again enters the decision, or nothing of it stays open.

        :raises StoppedError: Airflow has told this task to end, and nothing is decided.
        """
        from airflow_kafka_eos.protocol.repair.reprepare import adopt_all
        from airflow_kafka_eos.protocol.stages.begin import record_prepared
        from airflow_kafka_eos.protocol.stages.take_range import record_chosen

        ref, warned = taken.ref, taken.warned
        if taken.again is not None:
            with resolved.session(self.namespace) as session:
                adopt_all(session, taken.again, manifest)
            again = partitions_of(taken.again)
            step.done(ref.load, f"Spark partitions {again} are prepared again, and decided")
            return {
                "load": str(ref.load),
                "attempt": taken.row.number,
                "verdict": Verdict.COMMIT.value,
                **warned,
                "prepared_again": again,
                "records": manifest.records,
                "manifest": store.path(ref),
            }
        result = {
            "load": str(ref.load),
            "attempt": ref.attempt,
            "records": manifest.records,
            "bytes": manifest.bytes,
            "transactions": len(manifest.transactions),
            "scope": manifest.scope.value,
            "two_phase_commit": manifest.two_phase_commit,
            "writer": manifest.writer,
            "slot": ref.slot,
            "manifest": str(store.path(ref)),
            **warned,
        }
        with resolved.session(self.namespace) as session:
            if self.cursor is not None:
                record_chosen(session, ref.load, ref.attempt, lambda: store.until(ref))
            self._check_stop()
            record_prepared(session, manifest, writers_left=store.writers_left(manifest))
            verdict = self._decide_at_once(context, session, manifest, result)
        made = f"{manifest.records:,} records, {manifest.bytes:,} bytes in {manifest.how}"
        step.done(ref.load, f"prepared {made}; {_told(verdict)}", warns=verdict is Verdict.ABORT)
        return result | ({} if verdict is None else {"verdict": verdict.value})

    def _decide_at_once(
        self, context: Any, session: Session, manifest: Manifest, result: dict[str, Any]
    ) -> Verdict | None:
        found = decide_behind(self)
        if isinstance(found, DecideLoadOperator):
            return decide_at_once(found, self, context, session, manifest, result)
        self.log.info("%s is decided in a task of its own: %s", manifest.attempt, found)
        return None

    def warned(self, session: Session, row: AttemptRow, owner: str) -> dict[str, str]:
        """What to return, once it is logged, where the key does not fit what the job is asked for."""
        asked = self._arguments_sha256()
        if asked is None:
            return {}
        if row.verdict is Verdict.COMMIT:
            warning = asked_for_something_else(row, asked, owner=owner)
        else:
            warning = asked_before(row, session.ledger.with_same_arguments(row.load, asked))
        if not warning:
            return {}
        self.log.warning("load %s: %s", row.load, warning)
        return {"warning": warning}

    def _wanted(self, context: Any) -> Wanted | None:
        """The range that is asked for; None for a load without a cursor.

        :raises ConfigurationError: a named range was not filled in, is empty, or is no range.
        """
        from airflow_kafka_eos.protocol.stages.take_range import Wanted

        if self.cursor is None:
            return None
        if owner_index(context) is not None:
            raise ConfigurationError(
                f"load {self.load_identity} is mapped, and has a cursor: all map indexes would share it, and each "
                "range would go to one of them",
                remedy="Write an ExactlyOnceLoad for each, in a loop: each load name has a cursor of its own",
                load=str(self.load_identity),
            )
        found = range_of_conf(getattr(context.get("dag_run"), "conf", None))
        if found is not None and self.has_dag():  # type: ignore[no-untyped-call]
            check_only_cursor(self)
        if found is None and self.cursor.is_named:
            found = named(self.since, self.until)
        return Wanted(self.cursor, found, sql=self.sql is not None)

    def _arguments_sha256(self) -> str | None:
        # what a load with a cursor reads, its arguments do not say
        if not self._follow_from_run or self.cursor is not None:
            return None
        return self.asked_sha256()

    def asked_sha256(self) -> str:
        """What the job is asked for, as rendered; of a load with a cursor also the range that its author names."""
        beside = self._asked_beside()
        return digest_of(
            job=self.job,
            sql=self.sql,
            job_args=self.job_args or {},
            topics=self.topics,
            spark=beside if self.cursor is None else [beside, self.since, self.until],
        )

    def _asked_beside(self) -> Any:
        """What else may say what the application reads."""
        return None

    def written_sha256(self) -> str:
        """What the job is asked for, and how that is written: the application's specification, what it is submitted
        with, and the connections' ids. Without what each attempt has of its own: number, slot, deadline, range.

        :raises ConfigurationError: what is asked for cannot be written.
        """
        from airflow_kafka_eos.manifest import AttemptRef

        any_attempt = AttemptRef(self.load_identity, "0" * 10, 1)
        spec = json.loads(self._spec(manifest_store(self.manifest_dir), 1)(any_attempt))
        del spec["job_args"]  # asked_sha256 has them, without where a DAG file is on this host
        connections = [self.kafka_conn_id, self.ledger_conn_id, self.registry_conn_id]
        return sha256_of(
            [self.asked_sha256(), spec, self.transaction_naming, connections, self._submitted_with()]
        )

    def _submitted_with(self) -> Any:
        """What else may say how the application writes."""
        return None

    @property
    def _hold_time_ms(self) -> int:
        return int(self.hold_time.total_seconds() * 1000)

    def _spec(self, store: ManifestStore, deadline_ms: int) -> Any:
        from airflow_kafka_eos.spark.options import WriteOptions
        from airflow_kafka_eos.spark.spec import ApplicationSpec

        check_topics(self.topics, rendered=True)
        check_job_or_sql(self.job, self.sql)
        check_json(self.job_args)

        def of(ref: Any, reads: RangeRow | None = None, **changes: Any) -> str:
            options = WriteOptions(
                attempt=ref,
                manifest_dir=store.base,
                topics=tuple(self.topics),
                transaction_timeout_ms=self._hold_time_ms,
                deadline_ms=deadline_ms,
                # a repair is of the attempt's scope, whatever the DAG says by now
                scope=TransactionScope.TASK if ref.repairs else TransactionScope(self.scope),
                two_phase_commit=TwoPhaseCommit(self.two_phase_commit),
                writer=WriterName(self.writer),
            )
            return ApplicationSpec(
                replace(options, **changes),
                job=self.job,
                sql=self.sql,
                job_args=dict(self.job_args or {}),
                value_format=ValueFormat.of(self.value_format),
                range=None if reads is None else {"since": reads.since, "until": reads.until},
            ).to_json()

        return of


def check_cursor(cursor: Any, *, sql: bool, naming: TransactionNaming) -> None:
    """
    :raises ConfigurationError: it is none, or asks for what cannot be.
    """
    if cursor is None:
        return
    if not isinstance(cursor, Cursor):
        raise ConfigurationError(
            f"cursor={shown(cursor)} is of type {type(cursor).__name__}, not Cursor",
            remedy="Write cursor=Cursor(…), after `from airflow_kafka_eos import Cursor`",
        )
    if naming is TransactionNaming.POOLING:
        raise ConfigurationError(
            "transaction_naming='pooling' with a cursor: behind a ledger that was restored, pooled ids do not show "
            "which loads have read on since",
            remedy="Leave transaction_naming out; where [kafka_eos] says so for all, write "
            "Transactions(transaction_naming='incrementing') here",
        )
    cursor.check(sql=sql)


def check_only_cursor(task: PreparingOperator) -> None:
    """
    :raises ConfigurationError: the run's conf names one range, and its DAG has several cursors.
    """
    more = sorted(
        one.task_id
        for one in task.dag.tasks
        if isinstance(one, PreparingOperator) and one.cursor is not None and one is not task
        and one.task_id != task.task_id
    )  # fmt: skip
    if more:
        raise ConfigurationError(
            f"the run's conf names a range, and the DAG has several loads with a cursor: {task.task_id} and "
            f"{', '.join(more)}",
            remedy="Name it with Cursor(since=…, until=…) at the load that it is of, in a DAG for backfills",
        )


def shown_range(found: RangeRow) -> str:
    """A range, for a line of the log."""
    since, until = position.dump(found.since), position.dump(found.until)
    text = f"from {shown(since)} to {shown(until) if found.until is not None else 'where its job says'}"
    return f"{text}, as was named" if found.is_named else text


def partitions_of(again: Repreparation) -> list[int]:
    """The Spark partitions that are prepared again."""
    return [part.spark_partition for part in again.parts]


def _told(verdict: Verdict | None) -> str:
    """How the step's last line ends, by what was decided at once."""
    match verdict:
        case Verdict.COMMIT:
            return "decided: commit"
        case Verdict.ABORT:
            return "refused, so it is aborted, and the task decide fails with the reason"
        case None:
            return "the task decide decides it"
    assert_never(verdict)


def decide_behind(prepare: PreparingOperator) -> DecideLoadOperator | str:
    """The task that decides what this one has prepared; a text says why it has to wait for its turn. No I/O.

    Asked when it runs, not when the DAG is parsed: what an author puts between is wired behind the group.
    """
    if not prepare.decide_at_once:
        return "decide_at_once=False"
    if not prepare.has_dag():  # type: ignore[no-untyped-call]
        return f"{prepare.task_id} is in no DAG"
    behind = [task for task in prepare.downstream_list if isinstance(task, DecideLoadOperator)]
    if len(behind) != 1:
        return f"{len(behind)} tasks behind {prepare.task_id} decide"
    (decide,) = behind
    return _what_decide_waits_for(prepare, decide) or decide


def _what_decide_waits_for(prepare: PreparingOperator, decide: DecideLoadOperator) -> str:
    """What of the author's stands between the two, and may keep the load from being decided; else an empty text."""
    others = sorted(decide.upstream_task_ids - {prepare.task_id})
    if others:
        return f"it waits for {', '.join(others)}"
    if decide.trigger_rule != "all_success":
        return f"its trigger rule is {decide.trigger_rule.value}"
    if decide.depends_on_past or decide.wait_for_downstream:
        return "it waits for the run before"
    if decide._pre_execute_hook is not None or prepare._post_execute_hook is not None:
        return "a pre_execute or post_execute stands before it"
    return (
        overridden(prepare, "execute", "post_execute")
        or overridden(decide, "pre_execute", "execute", "decide")
    )


def check_writer(scope: TransactionScope, two_phase_commit: TwoPhaseCommit, writer: WriterName) -> None:
    """
    :raises ConfigurationError: the confluent writer was asked for, and what it does not have.
    """
    needs = 'scope="load"' if scope is TransactionScope.LOAD else ""
    if two_phase_commit is TwoPhaseCommit.REQUIRED:
        needs = needs or 'two_phase_commit="required"'
    if writer is WriterName.CONFLUENT and needs:
        raise ConfigurationError(
            f'writer="confluent" cannot do {needs}: librdkafka has no way to it',
            remedy=f'Leave writer at "auto", or {needs.partition("=")[0]} at its default',
        )
