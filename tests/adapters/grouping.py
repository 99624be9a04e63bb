"""Arguments of a load by their own names, for tests that go through all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from airflow_kafka_eos.argument_groups import GROUPS, PLACES


def grouped(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same with each field in its group, as ExactlyOnceLoad takes it."""
    made = {name: value for name, value in given.items() if name not in PLACES}
    for argument, kind in GROUPS.items():
        own = {field.name: given[field.name] for field in fields(kind) if field.name in given}
        if own:
            made[argument] = kind(**own)
    return made
