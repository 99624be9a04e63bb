"""What all operators and sensors of a load have in common."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
    redact,
)
from airflow.sdk import BaseOperator, BaseSensorOperator

from airflow_kafka_eos.amounts import duration_text
from airflow_kafka_eos.arguments import check_text
from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.errors import (
    ConfigurationError,
    InDoubtError,
    KafkaEosError,
    LedgerUnavailableError,
    OtherLedgerError,
    StoppedError,
    TerminalError,
    UndecidableError,
)
from airflow_kafka_eos.hooks import KafkaEosHook, Resolved
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict, filled_in
from airflow_kafka_eos.operators.begun import begun_in_run, check_begun
from airflow_kafka_eos.reasons import causes, reason_of

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.session import Session

Final = tuple[type[KafkaEosError], ...]

#: The identity's key when the author gives none: scheduled and backfill runs of one date are one load, whatever
#: run, try or clear they come from; manual runs have no date, their run id stands for them (docs/load-keys.md).
#: Runs of Airflow 3.1 have no partition key.
DEFAULT_LOAD_KEY = (
    "{{ dag_run.partition_key | default(none) "
    "or (dag_run.logical_date.isoformat() if dag_run.logical_date else run_id) }}"
)

#: dag id, run id and group id may have 250 characters each, the ledger keeps 500 of an owner
MAX_OWNER_PART = 200
_GROUP, MAPPED = "#group=", "#map_index="
_PACKAGE = __name__.partition(".")[0]
#: The XCom that says in which try its task was deferred.
_DEFERRED_IN = "kafka_eos_deferred_in"
#: What ends a decided load's task for good. Anything else, a refused login or a broker in the middle of an upgrade, is
#: tried again: behind the point of no return giving up loses the load to the broker's timeout.
FINAL_WHEN_DECIDED = (InDoubtError, UndecidableError)


class LoadOperator(BaseOperator):
    """One step of a load. What its arguments mean that are not explained here, all steps' together, is said in
    :class:`~airflow_kafka_eos.task_group.ExactlyOnceLoad`, which wires the steps.
    """

    # the connections stand among them so that Airflow's serialized DAG names them: the plugin's page finds them there
    template_fields: Sequence[str] = ("load_name", "load_key", "namespace", "kafka_conn_id", "ledger_conn_id")
    #: what logs, the ledger's reasons and the page call it
    step_name: ClassVar[str] = "a step"
    #: Airflow has told this task to end
    _is_told_to_stop = False

    def __init__(
        self,
        *,
        load_name: str,
        load_key: str = DEFAULT_LOAD_KEY,
        namespace: str | None = None,
        kafka_conn_id: str | None = None,
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_text("load_name", load_name, required=True)
        check_text("load_key", load_key, required=True)
        check_text("namespace", namespace)
        check_text("kafka_conn_id", kafka_conn_id)
        check_text("ledger_conn_id", ledger_conn_id)
        super().__init__(**kwargs)
        self.load_name = load_name
        self.load_key = load_key
        self._has_own_key = load_key != DEFAULT_LOAD_KEY
        self.namespace = setting("namespace", namespace)
        self.kafka_conn_id = setting("kafka_conn_id", kafka_conn_id)
        self.ledger_conn_id = optional("ledger_conn_id", ledger_conn_id)

    @property
    def load_identity(self) -> LoadIdentity:
        """The load, once the templates are rendered."""
        return LoadIdentity(self.namespace, self.load_name, self.load_key)

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Airflow's own; a run without a logical date has no ``ds`` and no data interval, and says so.

        :raises AirflowFailException: a template asks for one of them there: no retry has it.
        """
        from jinja2 import UndefinedError

        try:
            super().render_template_fields(context, jinja_env)
        except UndefinedError as e:
            run = context.get("dag_run")
            if run is None or run.logical_date is not None:
                raise
            with no_retry_of_terminal_errors():
                raise ConfigurationError(
                    f"a template of this task asks for what the run does not have ({e}): it was triggered without a "
                    "logical date, so there is no ds, and no data interval. Nothing was read or written",
                    remedy="Trigger it once more with a logical date (the field of that name in Airflow's UI, "
                    "logical_date in its API): with a timetable of data intervals, that loads the last whole interval "
                    "before it. Or write job_args and load_key for runs without a date (docs/load-keys.md)",
                ) from e

    def pre_execute(self, context: Any) -> None:
        """Airflow's own, with the author's ``pre_execute``; and see :meth:`check_key` and :meth:`check_begun`."""
        super().pre_execute(context)
        self.check_key(context)
        self.check_begun(context)

    def check_key(self, context: Any) -> None:
        """Refuse keys that would stand for several loads: the second would be taken for loaded already.

        :raises AirflowFailException: a mapped load has no ``load_key`` of its own, or a template had nothing to say.
        """
        with no_retry_of_terminal_errors():
            if self.load_key == "None":
                raise ConfigurationError(
                    f"load_key of the load {self.load_name!r} was rendered to 'None': this run does not have what its "
                    "template asks for, and all such runs would be one load",
                    remedy="Trigger the run with what names its data (a partition key, a parameter); or let load_key "
                    "ask for what every run has (docs/load-keys.md)",
                )
            if owner_index(context) is not None and not self._has_own_key:
                raise ConfigurationError(
                    f"load_key of the mapped load {self.load_name!r} is the default, the same for every map index",
                    remedy="Set item, or load_key, to what tells the mapped loads apart, the topic's name for one",
                    load=str(self.load_identity),
                )

    def check_begun(self, context: Any) -> None:
        """
        :raises AirflowFailException: this run has begun another load than the DAG file names by now.
        """
        begun = begun_in_run(self, context)
        with no_retry_of_terminal_errors():
            check_begun(self.load_identity, begun)

    @contextmanager
    def as_step(self, context: Any, name: str | None = None) -> Iterator[Step]:
        """Around all that the task does: it ends with one line that says what was done, or why not.

        Why not is noted in the ledger too, for the page and the command line.

        :param name: of the step, where another task does it with this one's arguments.
        """
        step = Step(self, context, name)
        try:
            yield step
        except (TaskDeferred, AirflowSkipException):
            raise
        except BaseException as e:
            step.failed(e)
            step.name_in(e)
            raise

    @contextmanager
    def open_session(self, final: Final = (TerminalError,)) -> Iterator[Session]:
        """Ledger and cluster of this load's connections; errors that are ``final`` end the task without retries."""
        with no_retry_of_terminal_errors(final), self._resolve().session(self.namespace) as session:
            yield session

    @contextmanager
    def open_ledger(self, final: Final = (TerminalError,)) -> Iterator[Ledger]:
        """The ledger alone; see :meth:`open_session`."""
        with no_retry_of_terminal_errors(final), self._resolve().ledger() as ledger:
            yield ledger

    def on_kill(self) -> None:
        """Airflow's own: called by SIGTERM in the middle of what runs, which goes on behind it until SIGKILL."""
        self._is_told_to_stop = True
        super().on_kill()

    def _check_stop(self) -> None:
        """Right before something is recorded or decided that a person who has marked the task does not expect any more.

        :raises StoppedError: Airflow has told this task to end.
        """
        if self._is_told_to_stop:
            raise StoppedError(
                f"{self.step_name} was told to stop before the load was decided: it decides nothing",
                remedy="Let the task be tried again, or clear it: it goes on, or opens a new attempt. What is prepared "
                "and undecided cleanup ends, of a run that has failed",
                load=str(self.load_identity),
            )

    def _resolve(self) -> Resolved:
        return KafkaEosHook(self.kafka_conn_id, self.ledger_conn_id).resolve()


class Step:
    """What one try of a task tells of itself.

    :param attempt: its number, once it is known.
    """

    def __init__(self, task: LoadOperator, context: Any, name: str | None = None) -> None:
        self._task = task
        self._name = name or task.step_name
        self._context = context
        self._began = time.monotonic()
        self.attempt: int | None = None

    def done(self, load: LoadIdentity | str, text: str, *, warns: bool = False) -> None:
        """The step's last line.

        :param warns: a person should know.
        """
        level = logging.WARNING if warns else logging.INFO
        self._task.log.log(level, "%s: %s, in %s", self._of(load), text, duration_text(self._seconds()))

    def failed(self, error: BaseException) -> None:
        """The same line of a step that failed, and a note in the ledger. Raises nothing."""
        task = self._task
        with suppress(Exception):
            resolved = None
            with suppress(Exception):  # what is wrong may be the connections
                resolved = task._resolve()
            secrets = [] if resolved is None else resolved.secrets
            why = str(redact(reason_of(error, secrets)))
            took = duration_text(self._seconds())
            task.log.error("%s: %s failed after %s: %s", self._of(task.load_identity), self._name, took, why)
            if resolved is None or _is_of_ledger(error):
                return  # waiting for it once more would tell nobody
            with resolved.ledger(existing=True) as ledger:
                ledger.note_failure(
                    task.load_identity,
                    by=owner_of(self._context),
                    reason=f"{self._name} failed: {why}",
                    number=self.attempt,
                    sweeping=self._name == "cleanup",
                )

    def name_in(self, error: BaseException) -> None:
        """Put load and attempt into an error of ours, or of Airflow's, that lacks them, and into its commands.

        Whoever is called by an email, or by a callback, has its text alone. Raises nothing.
        """
        with suppress(Exception):
            load = self._task.load_identity
            if isinstance(error, KafkaEosError):
                if error.load in (None, str(load)):
                    error.load = str(load)
                    error.attempt = error.attempt or self.attempt
                    error.remedy = filled_in(error.remedy, load)
            elif isinstance(error, AirflowException):
                text = str(error)
                named = _named(text, load, self.attempt)
                if named != text:
                    error.args = (named,)

    def _of(self, load: LoadIdentity | str) -> str:
        return f"load {load}" if self.attempt is None else f"load {load} attempt {self.attempt}"

    def _seconds(self) -> float:
        """Of a task that was deferred: since it began, not since it was resumed."""
        here = time.monotonic() - self._began
        started = getattr(self._context["ti"], "start_date", None)
        if not isinstance(self._task, BaseSensorOperator) or started is None:
            return here
        return max(here, float((datetime.now(UTC) - started).total_seconds()))


def _named(text: str, load: LoadIdentity, attempt: int | None) -> str:
    """The text of an error with load and attempt behind it, where they do not stand in it. No I/O."""
    is_named = f"[load {load}]" in text or f"[load {load}, " in text  # another one's name may begin like this one
    if "[load " in text and not is_named:
        return text  # it is about another one
    missing = [] if is_named else [f"load {load}"]
    if attempt is not None and f"attempt {attempt}" not in text:
        missing.append(f"attempt {attempt}")
    text = filled_in(text, load)
    return f"{text} [{', '.join(missing)}]" if missing else text


def overridden(task: BaseOperator, *methods: str) -> str:
    """The first of these methods that an author's class has in the place of ours, for people; else an empty text."""
    kind = next((k for k in type(task).__mro__ if k.__module__.startswith(f"{_PACKAGE}.")), type(task))
    for method in methods:
        if getattr(type(task), method) is not getattr(kind, method):
            return f"{type(task).__name__} overrides {method}"
    return ""


def _is_of_ledger(error: BaseException) -> bool:
    return any(isinstance(one, (LedgerUnavailableError, OtherLedgerError)) for one in causes(error))


@contextmanager
def no_retry_of_terminal_errors(final: Final = (TerminalError,)) -> Iterator[None]:
    """Trying again cannot help a terminal error: Airflow is told so."""
    try:
        yield
    except final as e:
        raise AirflowFailException(f"{type(e).__name__}: {e}") from e


def note_deferral(context: Any) -> None:
    """Note in which try a task is deferred, for :func:`is_of_this_try`; right before it is.

    In an XCom: Airflow keeps those of a task that comes back. What it hands over itself has no place for it: a timeout
    replaces it, and so does ``airflow dags test``.
    """
    context["ti"].xcom_push(_DEFERRED_IN, context["ti"].try_number)


def is_of_this_try(context: Any) -> bool:
    """Whether a task comes back to the try that was deferred (rule: event-of-its-own-try).

    Airflow clears a task that runs without forgetting what it was resumed with: its next try comes back, too, with what
    was found before the clear. A task that a version before has deferred has noted nothing.
    """
    ti = context["ti"]
    noted = ti.xcom_pull(task_ids=ti.task_id, key=_DEFERRED_IN, map_indexes=ti.map_index)
    return noted is not None and noted == ti.try_number


def owner_of(context: Any) -> str:
    """The load's group in a run, the same on every try and every clear of it; never two loads of one run.

    Short enough for the ledger to keep it whole: cleanup finds a run's own attempts by it.
    """
    ti, index = context["ti"], owner_index(context)
    run = run_of(ti.dag_id, ti.run_id)
    return run + group_of_task(ti.task_id) + ("" if index is None else f"{MAPPED}{index}")


def task_of(context: Any) -> str:
    """The task in its run, the same on every try: two of one group have one owner, and stand in each other's way."""
    ti, index = context["ti"], owner_index(context)
    run = _short(f"{ti.dag_id}/{ti.run_id}")
    return f"{run} task {_short(ti.task_id)}" + ("" if index is None else f"{MAPPED}{index}")


def are_siblings(owner: str, other: str) -> bool:
    """Whether two owners are different groups or map indexes of one run."""
    run, of, _ = owner.partition(_GROUP)
    return owner != other and other.startswith(run + of)


def run_of(dag_id: str, run_id: str) -> str:
    """How the owners of a run's attempts begin."""
    return _short(f"{dag_id}/{run_id}") + _GROUP


def dag_and_run_of(owner: str) -> tuple[str, str] | None:
    """The DAG and the run that an owner names; None where it is no run of Airflow's, or the DAG's id was cut off.

    A run id that was too long to be kept whole is no run's.
    """
    run, group, _ = owner.partition(_GROUP)
    dag_id, slash, run_id = run.partition("/")
    return (dag_id, run_id) if group and slash else None


def dag_of(owner: str) -> str | None:
    """The DAG that an owner names; see :func:`dag_and_run_of`."""
    found = dag_and_run_of(owner)
    return None if found is None else found[0]


def group_of(owner: str) -> str:
    """The task group that an owner names, as :func:`group_of_task` writes it."""
    return owner.partition(_GROUP)[2].partition(MAPPED)[0]


def index_of(owner: str) -> int | None:
    """The map index that an owner names; None where it names none."""
    index = owner.partition(_GROUP)[2].partition(MAPPED)[2]
    return int(index) if index.isdecimal() else None


def group_of_task(task_id: str) -> str:
    """A task's group, as owners name it."""
    return _short(task_id.rpartition(".")[0])


def owner_index(context: Any) -> int | None:
    """The map index of a task instance of a mapped group, None elsewhere."""
    index = context["ti"].map_index
    return index if index is not None and index >= 0 else None


def committed_before(ledger: Ledger, load: LoadIdentity) -> AttemptRow | None:
    """The attempt by which a load is COMMITTED, where nobody has anything left to do: Kafka need not be asked.

    None also where its dual write is half done, or repairs were made, of which stragglers may be open.
    """
    if ledger.state(load) is not LoadState.COMMITTED or ledger.repairs(load):
        return None
    found = (row for row in ledger.attempts(load) if row.verdict is Verdict.COMMIT and row.closed_at is not None)
    return next((row for row in found if not row.is_unfinished), None)


def check_no_sibling(row: AttemptRow, context: Any) -> None:
    """Another load of the same run has decided under this identity: its data is not ours, and must not pass for it.

    A group that the DAG no longer has is our own under its former name.

    :raises ConfigurationError: two loads of one run have the same name and key.
    """
    owner, other = owner_of(context), row.responsible
    if row.verdict is not Verdict.COMMIT or not are_siblings(owner, other):
        return
    if group_of(other) in {group_of_task(task_id) for task_id in context["dag"].task_ids}:
        raise ConfigurationError(
            f"the load was committed by {other}, another load of this run",
            remedy="Give each load of a DAG a load_name, and each map index a load_key, of its own",
            load=str(row.load),
            attempt=row.number,
        )


def _short(text: str) -> str:
    if len(text) <= MAX_OWNER_PART:
        return text
    return f"{text[: MAX_OWNER_PART - 17]}~{hashlib.sha256(text.encode()).hexdigest()[:16]}"
