"""The parts of the reference that are made from the code: Markdown for the site's pages.

A page of docs/ says where: ``<!-- from the code: errors -->``. None of it is kept in a file, so none of it gets old.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from raised_errors import raised, says_something

from airflow_kafka_eos import Submit, cli, config, errors, get_provider_info, hooks, signatures, stats
from airflow_kafka_eos.argument_groups import GROUPS
from airflow_kafka_eos.cli.terminal import code_of
from airflow_kafka_eos.errors import KafkaEosError, TransientError
from airflow_kafka_eos.operators.base import LoadOperator
from airflow_kafka_eos.operators.own_submitter import submitter_of
from airflow_kafka_eos.protocol.metrics import Metrics
from airflow_kafka_eos.task_group import ExactlyOnceLoad
from tests.mutations.table import MUTATIONS
from tests.public_api import has_arguments_only, public
from tests.rules import rules

PACKAGE = Path(errors.__file__).parent
ROOT = PACKAGE.parent
#: of docs/guarantees-and-tests.md
FOLLOWS = re.compile(r"(?ms)^Follows from .*?\.$")
NAMED = r"\[([a-z-]+)\]\(protocol\.md#"
MARKER = re.compile(r"<!-- from the code: (\w+) -->")


def is_made(page: str) -> bool:
    """Whether the code has a part in it."""
    return bool(MARKER.search(page) or FOLLOWS.search(page))


def made(page: str) -> str:
    """The page's text with what the code says in the markers' places, and the tests of the rules that it follows from.

    :raises KeyError: a marker names nothing that is made here, or a rule is none.
    """
    page = MARKER.sub(lambda marker: PARTS[marker[1]](), page)
    return FOLLOWS.sub(lambda found: f"{found[0]}\n{_of_rules(re.findall(NAMED, found[0]))}", page)


def _plain(text: str) -> str:
    """Text of a docstring as Markdown, in one line: what stands as code stays so, nothing else is markup."""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", lambda role: f"`{role[1].rpartition('.')[2]}`", " ".join(text.split()))
    parts = re.split(r"(`+[^`]+`+)", text)
    parts[::2] = [_links(re.sub(r"([\\*_<>\[\]|~#])", r"\\\1", part)) for part in parts[::2]]
    parts[1::2] = [_code(part.strip("`")) for part in parts[1::2]]
    return "".join(parts)


def _links(text: str) -> str:
    """Pages that a docstring names, from a page of docs/."""

    def adr(number: re.Match[str]) -> str:
        (page,) = (ROOT / "docs" / "adr").glob(f"{number[1]}-*.md")
        return f"[ADR {int(number[1])}](adr/{page.name})"

    text = re.sub(r"\bdocs/([a-z-]+)\.md", r"[\1.md](\1.md)", text)
    text = re.sub(r"\brule: ([a-z]+(?:-[a-z]+)+)", r"rule: [\1](protocol.md#\1)", text)
    return re.sub(r"\bdocs/adr/(\d{4})", adr, text)


def _code(text: object) -> str:
    shown = str(text)
    fence = "``" if "`" in shown else "`"
    return f"{fence} {shown} {fence}" if fence == "``" else f"`{shown}`"


def _items(pairs: Iterable[tuple[str, str]]) -> str:
    """A list, not a table: what is code does not break, and would make a table wider than the page."""
    return "\n".join(["", *(f"- {head}\\\n  {text}" if text else f"- {head}" for head, text in pairs), ""])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _about(of: object) -> str:
    """A docstring's first paragraph."""
    return _plain(inspect.cleandoc(of.__doc__ or "").partition("\n\n")[0])


@cache
def _meanings(of: Callable[..., Any]) -> Mapping[str, str]:
    """What the docstring says of each parameter."""
    text = inspect.cleandoc(of.__doc__ or "")
    found = re.findall(r"(?ms)^:param (\w+): (.*?)(?=^:|^\S|\Z)", text)
    return {name: " ".join(meaning.split()) for name, meaning in found}


# --- arguments


def _parameters(of: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: p for name, p in inspect.signature(of).parameters.items() if name != "self" and p.kind not in kinds}


def _argument(name: str, annotation: object, default: str, meaning: str) -> tuple[str, str]:
    kind = _type(annotation)
    return ", ".join(part for part in (f"**{_code(name)}**: {kind}", default) if part), _plain(_sentence(meaning))


def _type(annotation: object) -> str:
    shown = getattr(annotation, "__forward_arg__", None) or annotation
    text = shown if isinstance(shown, str) else getattr(shown, "__name__", str(shown))
    return "" if shown is inspect.Parameter.empty else _code(re.sub(r"^Required\[(.*)\]$", r"\1", text))


def _default(name: str, parameter: inspect.Parameter | None) -> str:
    """As it works: of an option that is left out, the section's."""
    if name in config.OPTIONS and (parameter is None or parameter.default is None):
        default = config.OPTIONS[name].default
        return f"default {_code(f'[kafka_eos] {name}')}" + (f", else {_code(default)}" if default else "")
    if parameter is None:
        return ""
    if parameter.default is parameter.empty:
        return "required"
    shown = repr(parameter.default)
    return "default a template" if "{{" in shown else f"default {_code(shown)}"


def _of_steps() -> dict[str, inspect.Parameter]:
    """The parameters of the six steps, by name: a load's defaults stand there."""
    found: dict[str, inspect.Parameter] = {}
    for step in _operators():
        for base in reversed(step.__mro__):
            if base.__module__.startswith(PACKAGE.name) and "__init__" in vars(base) and issubclass(base, LoadOperator):
                found |= _parameters(base)
    return found


def _operators() -> list[type]:
    names = [(importlib.import_module(module), name) for module, given in public().items() for name in given]
    found = [getattr(module, name) for module, name in names]
    return [one for one in found if inspect.isclass(one) and has_arguments_only(one)]


def _arguments() -> str:
    steps = _of_steps()
    meanings = _meanings(ExactlyOnceLoad)
    types = {"group_id": "str", "topics": "Sequence[str] | XComArg", **signatures.LoadArguments.__annotations__}
    of_group = signatures.GroupArguments.__annotations__
    # what a step has to be told, the group may know by itself: load_name
    own = {name: p.replace(default=None) if p.default is p.empty else p for name, p in steps.items()}
    every = [
        _argument(
            name,
            types[name],
            "required" if name in ("group_id", "topics") else _default(name, own.get(name)),
            meanings[name],
        )
        for name in meanings
        if name in types
    ]
    text = ["### ExactlyOnceLoad", _items(every)]
    text.append("And of Airflow's TaskGroup: " + ", ".join(_code(name) for name in of_group) + ".")
    for argument, group in GROUPS.items():
        every = [
            _argument(one.name, one.type, _default(one.name, steps.get(one.name)), _meanings(group)[one.name])
            for one in dataclasses.fields(group)
        ]
        written = _code(f"{argument}={group.__name__}(…)")
        text += ["", f"### {group.__name__}", "", f"{_about(group)} Written {written}."]
        text.append(_items(every))
    text += ["", f"### {Submit.__name__}", "", f"{_about(Submit)} Written {_code('submit=Submit(…)')}."]
    text.append(_own(Submit))
    return "\n".join(text)


def _own(of: Callable[..., Any]) -> str:
    """What a call of ours takes whose docstring says all of it."""
    return _items(
        _argument(name, parameter.annotation, _default(name, parameter), _meanings(of)[name])
        for name, parameter in _parameters(of).items()
    )


def _operator_arguments() -> str:
    text = ["", f"### {submitter_of.__name__}", "", f"{_about(submitter_of)} Module {_code(submitter_of.__module__)}."]
    text.append(_own(submitter_of))
    for step in _operators():
        known: dict[str, tuple[inspect.Parameter, str]] = {}
        for base in reversed(step.__mro__):
            if base.__module__.startswith(PACKAGE.name) and "__init__" in vars(base):
                for name, parameter in _parameters(base).items():
                    known[name] = (parameter, _meaning(step, name))
        required_first = sorted(known.items(), key=lambda one: one[1][0].default is not inspect.Parameter.empty)
        every = [
            _argument(name, parameter.annotation, _default(name, parameter), meaning)
            for name, (parameter, meaning) in required_first
        ]
        text += ["", f"### {step.__name__}", "", f"{_about(step)} Module {_code(step.__module__)}."]
        text.append(_items(every))
    return "\n".join(text)


def _meaning(step: type, name: str) -> str:
    """Of its own docstring, else of the class that hands it on."""
    for of in (*step.__mro__, ExactlyOnceLoad, *GROUPS.values()):
        if name in _meanings(of):
            return _meanings(of)[name]
    raise KeyError(f"{step.__name__}: no docstring says what {name} is")


# --- configuration, connection


def _options() -> str:
    def head(name: str, option: config.Option) -> str:
        default = f"default {_code(option.default)}" if option.default else "not set by default"
        return f"**{_code(name)}**: {option.kind}, {default}; such as {_code(option.example)}"

    return _items((head(name, option), _plain(option.description)) for name, option in config.OPTIONS.items())


def _connection() -> str:
    form = get_provider_info.LEDGER_CONNECTION
    behaviour = form["ui-field-behaviour"]
    standard = {"host": "Host", "schema": "Schema", "login": "Login", "password": "Password", "port": "Port"}
    fields = [
        (
            f"**{_code(field)}**: \"{_plain(behaviour['relabeling'].get(field, label))}\"",
            _plain(_sentence(behaviour["placeholders"].get(field, ""))),
        )
        for field, label in standard.items()
        if field not in behaviour["hidden-fields"]
    ]
    for field, given in form["conn-fields"].items():
        values = ", ".join(map(_code, given["schema"].get("enum", ())))
        default = given["schema"].get("default")
        about = _plain(given["description"]) + (f": {values}" if values else "")
        about += f"; default {_code(default)}" if default else ""
        fields.append((f"**{_code(field)}** of the extra: \"{_plain(given['label'])}\"", about))
    hook = hooks.KafkaEosLedgerHook
    head = (
        f"Type {_code(form['connection-type'])}, in Airflow's form \"{_plain(form['hook-name'])}\"; "
        f"the hook is {_code(form['hook-class-name'])}. Its fields, with the form's labels:"
    )
    last = inspect.cleandoc(hook.__doc__ or "").split("\n\n")[-1].removeprefix("The form: ")
    return "\n".join([head, _items(fields), _plain(_sentence(last)), ""])


# --- numbers


def _numbers() -> str:
    measured = {field.name: _meanings(Metrics)[field.name] for field in dataclasses.fields(Metrics)}
    groups = (
        ("Gauges of maintenance, each time it runs", stats.GAUGES),
        ("Gauges that maintenance measures at the brokers and in the ledger", measured),
        ("Counters", stats.COUNTERS),
        ("Timers", stats.TIMERS),
    )
    text = []
    for heading, numbers in groups:
        every = ((_code(f"{stats.PREFIX}.{name}"), _plain(_sentence(said))) for name, said in numbers.items())
        text += ["", f"## {heading}", _items(every)]
    return "\n".join(text)


# --- commands


def commands(of: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each with its name, such as ``loads list``; another name of the same is left out."""
    groups = [a for a in of._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield path.strip(), of
    for group in groups:
        seen: set[int] = set()
        for name, inner in group.choices.items():
            if id(inner) not in seen:
                seen.add(id(inner))
                yield from commands(inner, f"{path} {name}")


def _commands() -> str:
    text = []
    for name, of in commands(cli.parser()):
        every = []
        for action in of._actions:
            if isinstance(action, argparse._HelpAction) or action.help is argparse.SUPPRESS:
                continue
            formatter = of._get_formatter()
            if action.option_strings:
                value = "" if action.nargs == 0 else f" {formatter._format_args(action, action.dest.upper())}"
                shown = ", ".join(_code(f"{option}{value}") for option in action.option_strings)
                shown += ", required" if action.required else ""
            else:
                shown = _code(formatter._format_args(action, action.dest).upper())
            every.append((shown, _plain(_sentence(formatter._expand_help(action) if action.help else ""))))
        text += ["", f"### {name}", ""]
        if of.description and of.formatter_class is argparse.RawDescriptionHelpFormatter:
            text += ["```text", of.description, "```", ""]  # its lines, and the lists in it, are as they shall stand
        elif of.description:
            text += [_plain(of.description), ""]
        text.append(_items(every) if every else "It takes none.")
    return "\n".join(text)


# --- errors


def _errors() -> str:
    text = []
    for name in _by_tree(KafkaEosError):
        kind: type[KafkaEosError] = getattr(errors, name)
        if kind is KafkaEosError:
            continue
        parent = kind.__bases__[0].__name__
        again = "Transient: Airflow's retries may help" if issubclass(kind, TransientError) else "Terminal: no retry"
        is_plain = parent in ("KafkaEosError", "TerminalError", "TransientError")
        within = "" if is_plain else f" {'An' if parent[0] in 'AEIOU' else 'A'} {_code(parent)}."
        text += ["", f"### {name}", "", f"{again}. Exit code of a command: {code_of(kind(''))}.{within}"]
        text += ["", _about(kind)]
        every = sorted((r for r in raised() if r.error == name), key=lambda r: (r.file, r.message))
        text.append(_items((_said(one.message), _what_to_do(one.remedy) + _at_stake(one.rules)) for one in every))
    return "\n".join(text)


def _at_stake(names: Iterable[str]) -> str:
    """The rules of the protocol that such an error guards."""
    links = ", ".join(f"[{name}](protocol.md#{name})" for name in names if name in rules())
    return f" At stake: {links}." if links else ""


def _what_to_do(remedy: str) -> str:
    if not says_something(remedy):
        return "The error itself says what to do: it depends on what was seen."
    return f"{_plain(remedy.rstrip('. '))}."


def _said(message: str) -> str:
    return _code(" ".join(message.split()).rstrip(". "))


def _by_tree(kind: type) -> list[str]:
    """A class before those that are made of it."""
    below = [one for one in kind.__subclasses__() if one.__name__ in errors.__all__]
    return [kind.__name__, *(name for one in below for name in _by_tree(one))]


# --- guarantees


def _of_rules(names: Iterable[str]) -> str:
    known = rules()

    def head(name: str) -> str:
        return f"[{name}](protocol.md#{name}): without it {_code(known[name].test.partition('tests/')[2])} fails"

    def mutations(name: str) -> str:
        return "Taken out by " + ", ".join(_code(one.name) for one in MUTATIONS if one.rule == name)

    return _items((head(name), mutations(name)) for name in names)


PARTS: Mapping[str, Callable[[], str]] = {
    "arguments": _arguments,
    "operators": _operator_arguments,
    "options": _options,
    "connection": _connection,
    "numbers": _numbers,
    "commands": _commands,
    "errors": _errors,
}
