"""What docs/api.md calls public, and how it is called, as public_api.txt has it written down.

Whoever changes it on purpose writes it anew, and says so in CHANGELOG.md:  python -m tests.public_api
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, is_typeddict

from airflow_kafka_eos import signatures

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
PINNED = Path(__file__).with_name("public_api.txt")


def public() -> dict[str, list[str]]:
    """The names of each public module, as the tables of docs/api.md list them."""
    rows = re.findall(r"(?m)^\| `(airflow_kafka_eos[\w.]*)` \| (.+?) \|", PAGE.read_text(encoding="utf-8"))
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def has_arguments_only(found: type) -> bool:
    """Operators and sensors: how they do their work is their own business."""
    from airflow.sdk import BaseOperator

    return issubclass(found, BaseOperator)


def written() -> str:
    """All of it as text, a line for each argument, so that a difference says what has changed."""
    lines: list[str] = []
    known: dict[int, str] = {}
    for module, names in public().items():
        for name in names:
            found = getattr(importlib.import_module(module), name)
            first = known.setdefault(id(found), f"{module}.{name}")
            same = first != f"{module}.{name}" and callable(found)
            lines += [f"{module}.{name}: {first}"] if same else _of(f"{module}.{name}", found)
    return "\n".join([*lines, *_unpacked()]) + "\n"


def _of(name: str, found: Any) -> Iterator[str]:
    if not inspect.isclass(found):
        yield from _called(name, found) if callable(found) else [f"{name}: {type(found).__name__}"]
        return
    if issubclass(found, enum.Enum):
        yield f"{name}: {', '.join(f'{m.name}={m.value!r}' for m in found)}"
        return
    bases = [b.__qualname__ for b in found.__bases__ if b is not object]
    yield from _called(f"{name}({', '.join(bases)})" if bases else name, found)
    if has_arguments_only(found):
        # and those that it hands on to classes of ours, as **kwargs
        for base in found.__mro__[1:]:
            if base.__module__.startswith("airflow_kafka_eos") and "__init__" in vars(base):
                yield from _called(f"  {base.__qualname__}", base)
        return
    fields = {f.name for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    for member in sorted(set(_members(found)) - fields):
        value = inspect.getattr_static(found, member)
        if isinstance(value, property):
            yield f"  .{member}: {inspect.signature(value.fget).return_annotation if value.fget else 'property'}"
        elif callable(value) or isinstance(value, classmethod | staticmethod):
            yield from _called(f"  .{member}", getattr(found, member))


def _unpacked() -> Iterator[str]:
    """What stands behind ``Unpack``: each TypedDict, without what it has from a smaller one that it contains."""
    every = {name: found for name, found in vars(signatures).items() if is_typeddict(found)}
    for name, found in every.items():
        within = {n: set(f.__annotations__.items()) for n, f in every.items()}
        smaller = [n for n, keys in within.items() if keys < within[name]]
        yield f"Unpack[{name}]" + (f": {', '.join(smaller)}, and" if smaller else "")
        for key, kind in found.__annotations__.items():
            if not any((key, kind) in within[n] for n in smaller):
                yield f"    {key}: {kind.__forward_arg__}"


def _members(found: type) -> Iterator[str]:
    """What our own classes have; an Airflow operator's members are Airflow's to promise."""
    for base in found.__mro__:
        if base.__module__.startswith("airflow_kafka_eos"):
            yield from (name for name in vars(base) if not name.startswith("_"))


def _called(name: str, found: Any) -> Iterator[str]:
    try:
        signature = inspect.signature(found)
    except ValueError:  # of an exception without one of its own
        yield name
        return
    arguments, kind = list(signature.parameters.values()), None
    indent = " " * (len(name) - len(name.lstrip()) + 4)
    yield name + ("" if arguments else "()")
    for argument in arguments:
        if argument.kind is argument.KEYWORD_ONLY and kind not in (argument.KEYWORD_ONLY, argument.VAR_POSITIONAL):
            yield f"{indent}*"
        kind = argument.kind
        # without the quotes of an annotation that is kept as text
        yield indent + re.sub(r"^([*\w]+): '(.*?)'(?= =|$)", r"\1: \2", str(argument))
    if signature.return_annotation not in (signature.empty, "None", None):
        yield f"{indent}-> {signature.return_annotation}"


if __name__ == "__main__":
    PINNED.write_text(written(), encoding="utf-8")
