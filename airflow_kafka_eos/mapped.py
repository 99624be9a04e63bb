"""Mapped loads: one ExactlyOnceLoad per item, each a load of its own, known by the item's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast, get_args

from airflow.sdk import TaskGroup

from airflow_kafka_eos.argument_groups import PLACES
from airflow_kafka_eos.arguments import check_job_or_sql, check_json, check_topics
from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.operators.begin import name_of_item
from airflow_kafka_eos.signatures import ItemArguments, Mappable, MappedArguments, check_names

if TYPE_CHECKING:
    from airflow.sdk import XComArg

#: What may differ from load to load: Airflow fills in a mapped argument where templates are rendered, nowhere else.
MAPPABLE: tuple[Mappable, ...] = get_args(Mappable)
#: What names an item, the first that it has.
_NAMES = ("item", "topic", "topics")


class MappedLoads:
    """What :meth:`ExactlyOnceLoad.partial` returns: the arguments that all loads share.

    ::

        ExactlyOnceLoad.partial("tables", job="jobs/table.py", job_args={"day": DAY}, load_key=DAY).expand(
            topic=["orders", "returns", "customers"]
        )

    makes the mapped group ``tables`` with the group ``load`` in it: its tasks are ``tables.load.begin`` and so on. The
    load name is ``<dag id>.tables.load`` for all of them; the item's name goes behind the key. Items may be added,
    taken away and put into another order from run to run.

    :param make: the class that ``partial`` was called on; it makes each load.
    """

    def __init__(self, group_id: str, arguments: Mapping[str, Any], make: Callable[..., TaskGroup]) -> None:
        check_names(arguments, "partial()")
        if "item" in arguments:
            raise ConfigurationError(
                f"partial() was given item={arguments['item']!r}: all loads would have that name",
                remedy="Map it: expand_kwargs([{'item': …, …}])",
            )
        if arguments.get("cursor") is not None:
            raise ConfigurationError(
                "partial() was given a cursor: all loads would share it, and each range would go to one of them",
                remedy="Write an ExactlyOnceLoad for each, in a loop: each load name has a cursor of its own",
            )
        self.group_id = group_id
        self._shared = dict(arguments)
        self._make = make

    def expand(self, **mapped: Unpack[MappedArguments]) -> TaskGroup:
        """One load for each value of the one argument that is given.

        :param mapped: ``topic=``: texts, or ``topics=``: lists of texts. A list, or what an earlier task returns.
        :raises ConfigurationError: it is none or more than one argument, one that cannot be mapped, or two equal items.
        """
        if len(mapped) != 1:
            raise ConfigurationError(
                f"expand() was given {len(mapped)} arguments ({', '.join(mapped) or 'none'}): Airflow would map over "
                "all combinations of their values, and no item would have a name",
                remedy="Give expand() one argument; where several belong together use expand_kwargs()",
            )
        ((name, values),) = mapped.items()
        group = self._group([name])
        if isinstance(values, str) or (isinstance(values, Sequence) and not values):
            raise ConfigurationError(
                f"expand() was given {name}={values!r}: no list of loads", remedy=f"Pass a list: {name}=['…', '…']"
            )
        if isinstance(values, Sequence):
            _check_items([{name: value} for value in values])
        return group.expand(**mapped)  # type: ignore[no-any-return]

    def expand_kwargs(
        self, kwargs: Sequence[ItemArguments] | XComArg, *, names: Iterable[Mappable] = ()
    ) -> TaskGroup:
        """One load for each dict of arguments; ``item`` names it, else ``topic`` or ``topics``.

        :param kwargs: a list of dicts with the same keys, or what an earlier task returns.
        :param names: the dicts' keys, where they come from an earlier task.
        :raises ConfigurationError: keys that differ or cannot be mapped, or two equal items.
        """
        if isinstance(kwargs, Sequence) and kwargs:
            names = cast("list[Mappable]", sorted(map(str, kwargs[0])))
            if any(sorted(map(str, one)) != names for one in kwargs):
                raise ConfigurationError(
                    f"expand_kwargs(): not every item has the keys {', '.join(names)}",
                    remedy="Give each dict the same keys",
                )
        if not names:
            raise ConfigurationError(
                "expand_kwargs() does not know which arguments the earlier task returns",
                remedy="Name the keys of its dicts: names=['topic', 'job_args']",
            )
        group = self._group(names)
        if isinstance(kwargs, Sequence):
            _check_items(kwargs)
        return group.expand_kwargs(kwargs)  # type: ignore[no-any-return]

    def _group(self, names: Iterable[str]) -> Any:
        names = list(names)
        for name in names:
            if name not in MAPPABLE:
                near = nearest(name, MAPPABLE)
                raise ConfigurationError(
                    f"{name} cannot be mapped",
                    remedy=(f"Did you mean {near}? " if near else "")
                    + f"These can: {', '.join(MAPPABLE)}; give {PLACES.get(name, 'all else')} to partial()",
                )
            if name in self._shared or (name in ("topic", "topics") and "topics" in self._shared):
                raise ConfigurationError(
                    f"{name} is mapped, and given to partial() too", remedy="Give it in one place only"
                )
        named_by = next((n for n in _NAMES if n in names), None)
        if named_by is None:
            raise ConfigurationError(
                f"mapped over {', '.join(names)}, the loads have no names: a map index is none, it changes",
                remedy="Use expand_kwargs() and give each item a name: {'item': 'orders', ...}",
            )

        def one_load(**mapped: Any) -> None:
            arguments = {k: v for k, v in mapped.items() if k not in ("item", "topic")}
            if "topic" in mapped:
                arguments["topics"] = [mapped["topic"]]
            self._make("load", item=mapped[named_by], **self._shared | arguments)

        # here, for it imports all decorators: each task of each load would pay for that
        from airflow.sdk import task_group

        return task_group(group_id=self.group_id)(_with_parameters(one_load, names))


def _with_parameters(function: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """The function with named parameters in place of ``**``, which Airflow does not map over."""
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _check_items(items: Iterable[Mapping[str, Any]]) -> None:
    """What is known when the DAG is parsed, as each load will check its own; and that no two have one name."""
    seen: set[str] = set()
    for one in items:
        if "topic" in one:
            check_topics([one["topic"]], argument="topic")
        if "topics" in one:
            check_topics(one["topics"])
        if "job" in one or "sql" in one:
            check_job_or_sql(one.get("job"), one.get("sql"))
        check_json(one.get("job_args"))
        name = name_of_item(next(one[n] for n in _NAMES if n in one))
        if name in seen:
            raise ConfigurationError(
                f"two mapped loads have the name {name!r}: the second would be taken for loaded already",
                remedy="Give each item a name of its own: {'item': ..., ...}",
            )
        seen.add(name)
