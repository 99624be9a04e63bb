"""The keyword arguments of a load, as type checkers and editors know them where Python itself sees only ``**``.

What each means is in the docstring of :class:`~airflow_kafka_eos.task_group.ExactlyOnceLoad`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

from airflow_kafka_eos.arguments import Duration
from airflow_kafka_eos.load import NamingText, OnCommittedText, ScopeText, TwoPhaseCommitText, WriterText
from airflow_kafka_eos.spark.formats.settings import FormatText, ValueFormatArguments

if TYPE_CHECKING:
    from airflow.sdk import DAG, TaskGroup, XComArg


class GroupArguments(TypedDict, total=False):
    """Those of Airflow's TaskGroup that a load hands on."""

    group_display_name: str
    prefix_group_id: bool
    parent_group: TaskGroup | None
    dag: DAG
    default_args: dict[str, Any]
    tooltip: str
    doc_md: str | None
    ui_color: str
    ui_fgcolor: str
    add_suffix_on_collision: bool


class SharedArguments(GroupArguments, total=False):
    """Those that mapped loads share, and that a decorated function takes."""

    load_name: str | None
    load_key: str
    on_committed: OnCommittedText | str
    namespace: str | None
    kafka_conn_id: str | None
    ledger_conn_id: str | None
    spark_conn_id: str
    min_records: int | None
    max_records: int | None
    check: Callable[..., Any] | None
    also_sql: Any
    also: Callable[[Any, Any], object] | None
    decide_at_once: bool
    hold_time: Duration | None
    margin: Duration | None
    quiet_period: Duration | None
    scope: ScopeText
    two_phase_commit: TwoPhaseCommitText | None
    writer: WriterText
    transaction_naming: NamingText | None
    max_transactional_ids: int | None
    max_transactional_ids_of_namespace: int | None
    value_format: FormatText | ValueFormatArguments
    registry_conn_id: str | None
    manifest_dir: str | None
    deferrable: bool | None
    outlets: Sequence[Any]
    asset_events: bool
    asset_server: str | None
    spark_args: Mapping[str, Any] | None


class PartialArguments(SharedArguments, total=False):
    """Those of ``ExactlyOnceLoad.partial()``."""

    topics: Sequence[str] | XComArg
    job: str | XComArg | None
    sql: str | XComArg | None
    job_args: Mapping[str, Any] | XComArg | None


class OverridingArguments(SharedArguments, total=False):
    """Those of a decorated function's ``override()``."""

    group_id: str
    topics: Sequence[str] | XComArg
    item: Any


class DecoratorArguments(SharedArguments, total=False):
    """Those of ``@exactly_once_load``."""

    group_id: str
    item: Any
    topics: Required[Sequence[str] | XComArg]


#: What may differ from load to load.
Mappable = Literal["item", "topic", "topics", "job", "sql", "job_args"]


class MappedArguments(TypedDict, total=False):
    """Those of ``expand()``, which takes one of them: a list, or what an earlier task returns."""

    item: Sequence[Any] | XComArg
    topic: Sequence[str] | XComArg
    topics: Sequence[Sequence[str]] | XComArg
    job: Sequence[str] | XComArg
    sql: Sequence[str] | XComArg
    job_args: Sequence[Mapping[str, Any]] | XComArg


class ItemArguments(TypedDict, total=False):
    """Those of one item of ``expand_kwargs()``."""

    item: Any
    topic: str
    topics: Sequence[str]
    job: str
    sql: str
    job_args: Mapping[str, Any]
