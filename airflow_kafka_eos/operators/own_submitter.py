"""An operator of the author's that has a load's application run, wherever that is (docs/any-submitter.md).

It opens an attempt at each of its tries (rule: one-application-per-attempt), so that has to happen in its ``execute``,
right before its own work. Templates are rendered before that, also for people who only look (``airflow tasks render``,
the UI): so ``{{ kafka_eos.spec }}`` and the like render to a mark, and what they stand for takes the mark's place once
the attempt is open. What is written and how are the arguments of the task ``collect`` behind it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import new_class
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator, BaseSensorOperator

from airflow_kafka_eos.arguments import shown
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.operators.base import LoadOperator, no_retry_of_terminal_errors
from airflow_kafka_eos.operators.collect import CollectLoadOperator
from airflow_kafka_eos.operators.marks import NAME, Marks, copied, fill_in, may_have_mark
from airflow_kafka_eos.operators.shown_secrets import shown_secret
from airflow_kafka_eos.operators.submitting import asked, for_a_child, manifest_store, what_it_said

if TYPE_CHECKING:
    from airflow_kafka_eos.hooks import Resolved
    from airflow_kafka_eos.manifest import AttemptRef
    from airflow_kafka_eos.operators.preparing import PreparingOperator, Taken
    from airflow_kafka_eos.spark.manifest_store import ManifestStore

#: One of them must reach the application.
NEEDED = ("spec", "spec_file")
#: Operators' arguments that have a retry wait for the application of an earlier try, which has another attempt's spec;
#: or that have the triggerer begin, where nobody opens an attempt. Some are on unless they are given.
REATTACHING = ("reattach", "reattach_on_restart", "durable", "start_from_trigger")
#: What the load sets itself.
_OURS = ("task_id", "trigger_rule", "outlets")
_SUFFIX = "OfLoad"


class OwnSubmitter(BaseOperator):
    """What :func:`submitter_of` mixes into an operator's class; no name of its own may be one of that class's."""

    #: Whether the Spark driver is a child of the task's process.
    kafka_eos_runs_here: ClassVar[bool] = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in REATTACHING:
            if kwargs.get(name):
                raise ConfigurationError(
                    f"{name}={kwargs[name]!r} of {_of(self)}: a try would not run its own application, but wait for "
                    "that of an earlier one, whose attempt is over by then",
                    remedy="Leave it out: it is switched off",
                )
            if getattr(self, name, False):
                setattr(self, name, False)
        has_own = getattr(self, "env", None) is not None and not getattr(self, "append_env", True)  # as BashOperator
        if self.kafka_eos_runs_here and has_own:
            raise ConfigurationError(
                f"env of {_of(self)} is all that its child gets: not the Kafka settings, which runs_here=True gives it "
                "by the environment of the task, nor whose child it is",
                remedy="Add append_env=True",
            )
        if not any(may_have_mark(self, getattr(self, field, None)) for field in self.template_fields):
            raise _without_spec(self, f"none of {', '.join(self.template_fields)} names it")

    @property
    def task_type(self) -> str:
        """What Airflow's database calls it: by this the plugin's link finds tasks of classes that it cannot know."""
        return OwnSubmitter.__name__

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Airflow's own, with marks for what is known in ``execute`` alone."""
        context[NAME] = Marks()
        super().render_template_fields(context, jinja_env)

    def execute(self, context: Any) -> Any:
        """Open an attempt, tell the operator of it, and run the operator itself.

        :returns: what the operator returns; None for a load that is decided already, which is not submitted.
        """
        collect = _collect(self, context)
        with collect.as_step(context, "submit") as step:
            with no_retry_of_terminal_errors():
                if not fill_in(self, vars(Marks())) & {*NEEDED}:
                    raise _without_spec(self, "no rendered template field has it")
                resolved = collect._resolve()
                _check_not_shown(self, collect, resolved)
                store = manifest_store(collect.manifest_dir)
                taken = collect.take(context, step, resolved, store)
                if taken.is_done:
                    collect.was_decided(step, taken)
                    return None
            with collect.giving_up(resolved, taken):
                with no_retry_of_terminal_errors():
                    _tell(self, context, store, taken)
                self.log.info("load %s: submitting by %s", taken.ref, _of(self))
                with _around(self, collect, resolved, store, taken.ref):
                    returned = super().execute(context)
            step.done(taken.ref.load, f"{_of(self)} is through")
            return returned

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Airflow's own, behind a deferral: with the attempt that this try has opened before it.

        A task that was cleared while it ran comes back here too, in a later try, with what the platform has answered to
        the one before: it opens an attempt of its own (rule: event-of-its-own-try).
        """
        told = _told(context)
        if told is None or told.get("try_number") != context["ti"].try_number:
            self.log.warning("this task was cleared since it was deferred, or a version before has deferred it: what "
                             "was submitted then is not waited for, it submits anew")  # fmt: skip
            return self.execute(context)
        collect = _collect(self, context)
        with collect.as_step(context, "submit") as step:
            with no_retry_of_terminal_errors():
                resolved = collect._resolve()
                store = manifest_store(collect.manifest_dir)
                ref = _tell_again(self, context, collect, store, told)
                step.attempt = ref.attempt
            with _around(self, collect, resolved, store, ref):
                returned = super().resume_execution(next_method, next_kwargs, context)
            step.done(ref.load, f"{_of(self)} is through")
            return returned


def _collect(task: OwnSubmitter, context: Any) -> CollectLoadOperator:
    """The task behind it, as it is in this run: a copy, rendered with the submitter's context."""
    with no_retry_of_terminal_errors():
        collect: CollectLoadOperator = collect_behind(task).prepare_for_execution()
        of_collect: Any = {**context, "task": collect}
        collect.render_template_fields(of_collect)
        collect.check_key(of_collect)
        collect.check_begun(of_collect)
        return collect


def _tell(task: OwnSubmitter, context: Any, store: ManifestStore, taken: Taken) -> None:
    """Leave the specification for the application, and name the attempt to the operator."""
    ref = taken.ref
    spec_file = store.note_spec(ref, taken.spec)
    told = {"load": str(ref.load), "ledger_id": ref.ledger_id, "attempt": ref.attempt, "spec_file": spec_file}
    ti = context["ti"]
    ti.xcom_push(NAME, told | {"try_number": ti.try_number})  # before the operator may defer
    _name(task, context, ref, taken.spec, spec_file)


def _told(context: Any) -> dict[str, Any] | None:
    """What :func:`_tell` has told, in this try or in one before; None where that is gone."""
    ti = context["ti"]
    told: dict[str, Any] | None = ti.xcom_pull(task_ids=ti.task_id, key=NAME, map_indexes=ti.map_index)
    return told


def _tell_again(
    task: OwnSubmitter, context: Any, collect: CollectLoadOperator, store: ManifestStore, told: dict[str, Any]
) -> AttemptRef:
    """What :func:`_tell` has told before the deferral: the operator's fields are rendered anew."""
    from airflow_kafka_eos.manifest import AttemptRef

    ref = AttemptRef(collect.load_identity, told["ledger_id"], told["attempt"])
    _name(task, context, ref, store.spec(ref) or "", told["spec_file"])
    return ref


def _name(task: OwnSubmitter, context: Any, ref: AttemptRef, spec: str, spec_file: str) -> None:
    """Put what is known now in the place of the marks, and of what ``execute`` itself may render."""
    from airflow_kafka_eos import spark
    from airflow_kafka_eos.spark.spec_argument import one_word

    context[NAME] = marks = Marks()
    marks.spec, marks.spec_file = one_word(spec), spec_file
    marks.application = str(Path(spark.__file__).with_name("application.py"))
    marks.attempt, marks.python = str(ref.attempt), sys.executable
    marks.token = token_of(ref, context["ti"].id)
    fill_in(task, vars(marks))


def token_of(ref: AttemptRef, try_id: object) -> str:
    """A word for one try of one load, and for no other: small letters, digits and hyphens, 34 of them, a letter first.

    By the attempt alone, a ledger that was restored would give it away twice.

    :param try_id: Airflow's, which stays the same behind a deferral.
    """
    load = ref.load
    whose = json.dumps([ref.ledger_id, load.namespace, load.name, load.key, ref.attempt, str(try_id)])
    return f"kafka-eos-{hashlib.sha256(whose.encode()).hexdigest()[:24]}"


@contextmanager
def _around(
    task: OwnSubmitter, collect: CollectLoadOperator, resolved: Resolved, store: ManifestStore, ref: AttemptRef
) -> Iterator[None]:
    """Around the operator's own work: what its driver needs, and the application's own error before its."""
    try:
        with for_a_child(_settings(collect, resolved)) if task.kafka_eos_runs_here else nullcontext():
            yield
    except (AirflowSkipException, AirflowFailException):
        raise
    except Exception as e:
        said = what_it_said(asked(lambda: store.failure(ref)))
        if said is None:
            raise
        raise said from e


def _check_not_shown(task: OwnSubmitter, collect: CollectLoadOperator, resolved: Resolved) -> None:
    """
    :raises ConfigurationError: a rendered field has a secret of the load's connections; its value is not named.
    """
    from airflow_kafka_eos.hooks import registry_settings
    from airflow_kafka_eos.ledger.location import parse, secrets_of
    from airflow_kafka_eos.spark.driver_secrets import FILE_SUFFIX, SETTINGS_VARIABLE
    from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE

    registry = registry_settings(collect.registry_conn_id).passwords if collect.registry_conn_id else []
    fields = {field: getattr(task, field, None) for field in task.template_fields}
    ledger = parse(resolved.ledger_url)
    # a job may have another database's login, which is the same
    whole_url = [part for part in (ledger.host, ledger.database) if part]
    for whose, secrets, beside in (
        ("the Kafka connection's", resolved.settings.passwords, []),
        ("the schema registry's", registry, []),
        ("the ledger's", secrets_of(ledger), whole_url),
    ):
        place = shown_secret(fields, secrets, beside)
        if place is not None:
            raise ConfigurationError(
                f"{place} of {_of(task)} has a secret of {whose}: Airflow's UI shows what is rendered, and the "
                "platform what it was sent. Nothing was submitted",
                remedy=f"Take it out of the DAG. The platform's secrets give the driver {SETTINGS_VARIABLE} and, for a "
                f"registry, {REGISTRY_VARIABLE}, or a file each, named by the same with {FILE_SUFFIX}; a child of the "
                "task's process gets them unseen, with runs_here=True. It needs no ledger (docs/any-submitter.md)",
                load=str(collect.load_identity),
            )


def _settings(collect: CollectLoadOperator, resolved: Resolved) -> dict[str, str]:
    from airflow_kafka_eos.hooks import registry_settings
    from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
    from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE

    texts = {SETTINGS_VARIABLE: resolved.settings.to_json()}
    if collect.registry_conn_id:
        texts[REGISTRY_VARIABLE] = registry_settings(collect.registry_conn_id).to_json()
    return texts


def _of(task: BaseOperator) -> str:
    return f"{task.operator_name} {task.task_id}"


def _without_spec(task: BaseOperator, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{_of(task)} is not told what to load: {where}",
        remedy="Hand the packaged application its argument --spec {{ kafka_eos.spec }}, or --spec "
        "@{{ kafka_eos.spec_file }}, in a field that is templated",
    )


@cache
def submitter_of(operator: type[BaseOperator], *, runs_here: bool = False) -> Any:
    """A class of the same operator that opens an attempt of its load at each try, and has it written.

    ::

        submit = submitter_of(LivyOperator)(task_id="submit", args=["--spec", "{{ kafka_eos.spec }}"], ...)
        begin >> submit >> CollectLoadOperator(task_id="collect", ...) >> decide

    In its templates ``kafka_eos`` has ``spec``, ``spec_file``, ``application``, ``attempt``, ``python`` and ``token``
    (docs/any-submitter.md).

    :param operator: its class, not an operator: BashOperator.
    :param runs_here: the Spark driver is a child of the task's process, as behind a BashOperator with spark-submit in
        client mode: it gets the Kafka settings by its environment, and ends when the task is gone. Else the platform
        gives it the settings.
    :raises ConfigurationError: it is no class of an operator, or one of a load's own.
    """
    if not (inspect.isclass(operator) and issubclass(operator, BaseOperator)):
        raise ConfigurationError(
            f"{shown(operator)} is no operator's class", remedy="Pass the class itself, such as BashOperator"
        )
    if issubclass(operator, (LoadOperator, OwnSubmitter)):
        raise ConfigurationError(
            f"{operator.__name__} is a step of a load already", remedy="Pass the class that it is made of"
        )
    if issubclass(operator, BaseSensorOperator):
        raise ConfigurationError(
            f"{operator.__name__} is a sensor: it would open an attempt each time that it looks",
            remedy="Submit with an operator, and put the sensor between it and collect",
        )
    members = {
        "kafka_eos_runs_here": runs_here,
        "custom_operator_name": getattr(operator, "custom_operator_name", operator.__name__),  # in Airflow's UI
        "__module__": __name__,
        "__doc__": operator.__doc__,
    }
    return new_class(operator.__name__ + _SUFFIX, (OwnSubmitter, operator), exec_body=lambda ns: ns.update(members))


class Submit:
    """Which operator submits a load's application, and what else its class is called with.

    ::

        submit=Submit(
            BashOperator,
            runs_here=True,
            bash_command="spark-submit --master 'local[2]' {{ kafka_eos.application }} --spec {{ kafka_eos.spec }}",
        )

    :param operator: its class: LivyOperator, BashOperator, or your own.
    :param runs_here: the Spark driver is a child of the task's process, as behind a BashOperator with spark-submit in
        client mode: it gets the Kafka settings by its environment, and ends when the task is gone. Else the platform
        gives it the settings.
    :param arguments: what the class is called with; ``task_id`` is the load's.
    :raises ConfigurationError: see :func:`submitter_of`; or an argument is the load's own.
    """

    def __init__(self, operator: type[BaseOperator], /, *, runs_here: bool = False, **arguments: Any) -> None:
        self._make: Callable[..., OwnSubmitter] = submitter_of(operator, runs_here=runs_here)
        taken = sorted(arguments.keys() & {*_OURS})
        if taken:
            raise ConfigurationError(
                f"Submit({operator.__name__}, …) has {taken[0]}={shown(arguments[taken[0]])}, which the load sets",
                remedy="Leave it out: what the load promises stands on how it sets it. Assets go into its outlets",
            )
        self._arguments = arguments

    def task(self) -> OwnSubmitter:
        """A task of it, in the group that is open; what one load's operator makes of its arguments no other sees."""
        return self._make(**copied(self._arguments), task_id="submit", trigger_rule="all_success", outlets=[])


def collect_behind(submit: BaseOperator) -> CollectLoadOperator:
    """The task that collects what this one has had written; its arguments say what that is. No I/O.

    :raises ConfigurationError: there is none right behind it, or several.
    """
    behind = [task for task in submit.downstream_list if isinstance(task, CollectLoadOperator)]
    if len(behind) != 1:
        raise ConfigurationError(
            f"{len(behind)} tasks right behind {submit.task_id} are a CollectLoadOperator",
            remedy="Wire begin >> submit >> collect in one task group: collect has the arguments of the load",
        )
    return behind[0]


def check_shared(submit: OwnSubmitter, collect: CollectLoadOperator) -> None:
    """
    :raises ConfigurationError: the driver runs elsewhere, and the manifests would be in a folder of this host's.
    """
    if not submit.kafka_eos_runs_here and not collect.manifest_dir:
        raise ConfigurationError(
            f"{_of(submit)} has the Spark driver run elsewhere, and there is no manifest_dir that it and Airflow share",
            remedy="Set manifest_dir to s3://bucket/folder or the like, or to a folder that all hosts mount. If the "
            "driver is a child of the task's process: Submit(…, runs_here=True)",
        )


def put_before(submit: OwnSubmitter, collect: PreparingOperator) -> None:
    """Have it run before collect, and behind all that the load's arguments come from; what is so already stays."""
    for task in collect.upstream_list:
        if task is not submit and task.task_id not in submit.upstream_task_ids:
            task >> submit
    if submit.task_id not in collect.upstream_task_ids:
        submit >> collect


def submitter_before(collect: BaseOperator) -> OwnSubmitter | None:
    """The task whose application this one collects; None where it has none, or it is not known which. No I/O."""
    before = [task for task in collect.upstream_list if isinstance(task, OwnSubmitter)]
    return before[0] if len(before) == 1 else None
