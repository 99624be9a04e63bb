"""transactions=Transactions(…) and checks=Checks(…): each field reaches its step, and nothing else speaks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_kafka_eos import Checks, ExactlyOnceLoad, Transactions, exactly_once_load
from airflow_kafka_eos.argument_groups import GROUPS, PLACES, UNSET
from airflow_kafka_eos.errors import ConfigurationError
from tests.adapters.grouping import grouped

BOTH: dict[str, Any] = {"topics": ["orders"], "job": "jobs/orders.py"}


def has_every_shop(manifest: Any) -> bool:
    return bool(manifest)


def is_not_given(manifest: Any) -> bool:
    raise AssertionError(manifest)


#: Field: a value that is no step's default, the step that takes it, and what it makes of it.
TAKEN: dict[str, tuple[Any, str, Any]] = {
    "scope": ("load", "prepare", "load"),
    "writer": ("arrow", "prepare", "arrow"),
    "two_phase_commit": ("off", "prepare", "off"),
    "hold_time": (3600, "prepare", timedelta(hours=1)),
    "margin": (7, "decide", timedelta(seconds=7)),
    "quiet_period": (8, "cleanup", timedelta(seconds=8)),
    "transaction_naming": ("pooling", "prepare", "pooling"),
    "max_transactional_ids": (None, "prepare", None),
    "max_transactional_ids_of_namespace": (None, "prepare", None),
    "min_records": (None, "decide", None),
    "max_records": (9, "decide", 9),
    "check": (has_every_shop, "decide", has_every_shop),
}
#: Others that pass, for what must not speak.
OTHER: dict[str, Any] = {
    "scope": "task", "writer": "auto", "two_phase_commit": "required", "hold_time": 100, "margin": 2,
    "quiet_period": 3, "transaction_naming": "incrementing", "max_transactional_ids": 4,
    "max_transactional_ids_of_namespace": 5, "min_records": 6, "max_records": 8, "check": is_not_given,
}  # fmt: skip


def dag(**arguments: Any) -> DAG:
    return DAG("groups", schedule=None, start_date=datetime(2026, 1, 1), **arguments)


def seen(steps: Callable[[str], Any]) -> dict[str, Any]:
    return {name: getattr(steps(step), name) for name, (_, step, _) in TAKEN.items()}


def of(load: ExactlyOnceLoad) -> dict[str, Any]:
    return seen(lambda step: getattr(load, step))


def by_class(groups: dict[str, Any]) -> dict[str, Any]:
    return of(ExactlyOnceLoad("load", **BOTH, **groups))


def by_default_args_and_class(groups: dict[str, Any]) -> dict[str, Any]:
    return of(ExactlyOnceLoad("load", default_args=OTHER, **BOTH, **groups))


def by_decorator(groups: dict[str, Any]) -> dict[str, Any]:
    @exactly_once_load(topics=["orders"], **groups)
    def rows(spark: Any) -> None: ...

    return of(rows())


def by_override(groups: dict[str, Any]) -> dict[str, Any]:
    @exactly_once_load(topics=["orders"], **grouped(OTHER))
    def rows(spark: Any) -> None: ...

    return of(rows.override(**{name: kind() for name, kind in GROUPS.items()} | groups)())


def by_expand(groups: dict[str, Any]) -> dict[str, Any]:
    made = ExactlyOnceLoad.partial("tables", job="j.py", **groups).expand(topic=["a", "b"])
    return seen(lambda step: made.dag.get_task(f"tables.load.{step}"))


def by_expand_kwargs(groups: dict[str, Any]) -> dict[str, Any]:
    made = ExactlyOnceLoad.partial("tables", job="j.py", **groups).expand_kwargs([{"item": "a", "topics": ["a"]}])
    return seen(lambda step: made.dag.get_task(f"tables.load.{step}"))


FORMS = (by_class, by_default_args_and_class, by_decorator, by_override, by_expand, by_expand_kwargs)


@pytest.mark.parametrize("form", FORMS)
def test_each_field_reaches_its_step_in_every_form(form: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    assert TAKEN.keys() == OTHER.keys() == PLACES.keys(), "a new field? Add it to TAKEN and OTHER"
    with dag(default_args=OTHER):
        assert form(grouped({name: value for name, (value, _, _) in TAKEN.items()})) == {
            name: wanted for name, (_, _, wanted) in TAKEN.items()
        }


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a load has that is given no group, where Airflow's section says something."""
    for option, text in {"hold_time": "1234", "margin": "77.5", "transaction_naming": "pooling"}.items():
        monkeypatch.setenv(f"AIRFLOW__KAFKA_EOS__{option.upper()}", text)
    with dag():
        found = by_class({})
    assert (found["hold_time"], found["transaction_naming"]) == (timedelta(seconds=1234), "pooling")
    assert (found["min_records"], found["max_transactional_ids"], found["scope"]) == (1, 10_000, "task")
    return found


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_left_out_beside_a_field_is_as_the_step_or_the_section_has_it(name: str, unset: dict[str, Any]) -> None:
    value, _, wanted = TAKEN[name]
    with dag(default_args=OTHER):
        assert by_default_args_and_class(grouped({name: value})) == unset | {name: wanted}


@pytest.mark.parametrize("form", FORMS)
def test_so_it_is_with_groups_that_say_nothing(
    form: Callable[[dict[str, Any]], dict[str, Any]], unset: dict[str, Any]
) -> None:
    with dag(default_args=OTHER):
        assert form({argument: kind() for argument, kind in GROUPS.items()}) == unset


def test_a_group_says_nothing_that_nobody_gave_it() -> None:
    for kind in GROUPS.values():
        assert {field.default for field in fields(kind)} == {UNSET}
    assert repr(replace(Checks(min_records=5), max_records=7)) == "Checks(min_records=5, max_records=7, check=UNSET)"


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("form", ["class", "partial", "decorator", "override"])
def test_a_field_that_is_given_to_the_load_itself_says_which_group_it_is_of(name: str, form: str) -> None:
    (group,) = [argument for argument, kind in GROUPS.items() if name in {field.name for field in fields(kind)}]
    forms: dict[str, Callable[[dict[str, Any]], Any]] = {
        "class": lambda wrong: ExactlyOnceLoad("load", **BOTH, **wrong),
        "partial": lambda wrong: ExactlyOnceLoad.partial("tables", **wrong),
        "decorator": lambda wrong: exactly_once_load(topics=["t"], **wrong)(has_every_shop),
        "override": lambda wrong: exactly_once_load(topics=["t"])(has_every_shop).override(**wrong),
    }
    with dag(), pytest.raises(ConfigurationError, match=f"has no argument {name!r}") as caught:
        forms[form]({name: TAKEN[name][0]})
    assert caught.value.remedy == f"It is {group}={group.capitalize()}({name}=…)"


@pytest.mark.parametrize("name", TAKEN)
def test_in_spark_args_it_says_so_too(name: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=f"spark_args has {name}") as caught:
        ExactlyOnceLoad("load", spark_args={name: TAKEN[name][0]}, **BOTH)
    assert PLACES[name] in caught.value.remedy


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"checks": {"min_records": 5}}, "checks={'min_records': 5} is of type dict, not Checks."),
        ({"checks": None}, "checks=None is of type NoneType, not Checks."),
        ({"transactions": "load"}, "transactions='load' is of type str, not Transactions."),
        ({"transactions": Checks()}, "is of type Checks, not Transactions."),
        ({"checks": Checks}, "is of type type, not Checks."),
        ({"transactions": "{{ params.how }}"}, "transactions='{{ params.how }}' is of type str"),
    ],
)
def test_what_is_no_group_is_refused(
    given: dict[str, Any], says: str, form: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    (name,) = given
    with dag(), pytest.raises(ConfigurationError) as caught:
        form(given)
    assert says in str(caught.value) and str(caught.value).startswith(f"{name}=")
    assert f"Write {name}={name.capitalize()}(…)" in caught.value.remedy
    assert f"from airflow_kafka_eos import {name.capitalize()}" in caught.value.remedy


def test_a_misspelt_field_is_pythons_own_error_at_the_line_where_it_stands() -> None:
    with pytest.raises(TypeError, match="hold_tim"):
        Transactions(hold_tim=5)  # type: ignore[call-arg]
