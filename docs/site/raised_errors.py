"""Each error that the package raises: what it says, and what to do, as both stand in the code."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from airflow_kafka_eos import errors

PACKAGE = Path(errors.__file__).parent
#: Functions that make an error of what other modules tell them.
_TOLD = ("setting_error", "require_spark")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def says_something(text: str) -> bool:
    """More than what is filled in."""
    return re.search(r"[a-zA-Z]{3}", re.sub("‹[^›]*›", "", text)) is not None


@dataclasses.dataclass(frozen=True)
class Raised:
    """Where an error is made: what it says, and what to do; ``‹name›`` stands for what is filled in.

    ``rules``: which the function that makes it guards, as its docstring has them.
    """

    error: str
    message: str
    remedy: str
    file: str
    rules: tuple[str, ...] = ()


class _Texts:
    """What a text in the code can be, as far as it stands there.

    :param given: what a caller gives for the parameters of the function that the text stands in.
    """

    def __init__(
        self, module: ModuleType, tree: ast.Module, given: Mapping[str, tuple[_Texts, ast.expr]] | None = None
    ) -> None:
        self._module, self._tree, self._given = module, tree, given or {}
        self._inside: dict[int, _Function] = {}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                self._inside |= {id(node): function for node in ast.walk(function)}

    def function_of(self, node: ast.AST) -> _Function | None:
        """The innermost that it stands in."""
        return self._inside.get(id(node))

    def with_given(self, given: Mapping[str, tuple[_Texts, ast.expr]]) -> _Texts:
        return _Texts(self._module, self._tree, given)

    def of(self, node: ast.expr | None, depth: int = 0) -> list[str]:
        """Each text that it may be."""
        match node:
            case None:
                return [""]
            case ast.Constant(value=str() as text):
                return [text]
            case ast.JoinedStr(values=values):
                return self._joined([self._part(value, depth) for value in values])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([self.of(left, depth + 1), self.of(right, depth + 1)])
            case ast.IfExp(body=body, orelse=orelse):
                return [*self.of(body, depth + 1), *self.of(orelse, depth + 1)]
            case ast.Name(id=name):
                return self._named(node, name, depth)
        return [_placeholder(node)]

    def of_remedy(self, node: ast.expr) -> list[str]:
        """The same, and what a function of the package returns, or one of the module's tables has."""
        match node:
            case ast.Call(func=ast.Name(id=name)):
                for home in self._imported_from(name):
                    return _Texts(home, ast.parse(inspect.getsource(home))).of_remedy(node)
                returned = [
                    statement.value
                    for function in self._tree.body
                    if isinstance(function, ast.FunctionDef) and function.name == name
                    for statement in ast.walk(function)
                    if isinstance(statement, ast.Return) and statement.value is not None
                ]
                texts = list(dict.fromkeys(text for value in returned for text in self.of(value, 1)))
                return [text for text in texts if says_something(text)] or self.of(node)
            case ast.Subscript(value=ast.Name(id=name)) if isinstance(getattr(self._module, name, None), dict):
                return [text for text in getattr(self._module, name).values() if isinstance(text, str)]
        return self.of(node)

    def _imported_from(self, name: str) -> list[ModuleType]:
        """The package's module that a function is imported from, here or within a function."""
        return [
            importlib.import_module(statement.module)
            for statement in ast.walk(self._tree)
            if isinstance(statement, ast.ImportFrom) and statement.module is not None
            and statement.module.startswith(f"{PACKAGE.name}.") and name in (alias.name for alias in statement.names)
        ][:1]  # fmt: skip

    def _part(self, value: ast.expr, depth: int) -> list[str]:
        if not isinstance(value, ast.FormattedValue):
            return self.of(value, depth + 1)
        # a constant of the module, or a choice of texts; what was seen has a name alone
        found = self.of(value.value, depth + 1) if isinstance(value.value, ast.IfExp | ast.Name) else []
        return found if 0 < len(found) <= 2 else [_placeholder(value.value)]

    def _joined(self, parts: list[list[str]]) -> list[str]:
        found = [""]
        for part in parts:
            found = [before + after for before in found for after in part][:4]
        return found

    def _named(self, node: ast.Name, name: str, depth: int) -> list[str]:
        if name in self._given and depth < 6:
            of_caller, expression = self._given[name]
            found = of_caller.of(expression, depth + 1)
            # what the caller was given itself is known by the name that it has here
            return found if any(map(says_something, found)) else [_placeholder(node)]
        function = self._inside.get(id(node))
        if function is not None and depth < 6:
            given = [
                n.value
                for n in ast.walk(function)
                if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
            ]
            texts = [text for value in given for text in self.of(value, depth + 1)]
            if texts and not all(re.fullmatch("‹[^›]*›", text) for text in texts):
                return list(dict.fromkeys(texts))[:4]
            if given or name in _parameters(function):
                return [_placeholder(node)]
        constant = getattr(self._module, name, None)
        if isinstance(constant, int | float) and not isinstance(constant, bool):
            return [f"{constant:g}"]
        return [constant] if isinstance(constant, str) else [_placeholder(node)]


def _parameters(function: _Function) -> list[str]:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _placeholder(node: ast.expr) -> str:
    """With what is filled in behind its name: two things may have one name."""
    return f"‹{_name_of(node)}\x00{ast.unparse(node)}›"


def _told_apart(message: str, remedy: str) -> tuple[str, str]:
    """Placeholders without what is filled in: the second of a name is numbered, where it stands for something else."""
    known: dict[str, list[str]] = {}

    def named(found: re.Match[str]) -> str:
        name, of = found[1], known.setdefault(found[1], [])
        if found[2] not in of:
            of.append(found[2])
        number = of.index(found[2]) + 1
        return f"‹{name}›" if number == 1 or name == "…" else f"‹{name} {number}›"

    pattern = "‹([^›\x00]*)\x00([^›]*)›"
    return re.sub(pattern, named, message), re.sub(pattern, named, remedy)


def _name_of(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name.strip("_").lower()
        case ast.Attribute(attr="__name__"):
            return "type"
        case ast.Attribute(attr=name):
            return name.strip("_").lower()
        case ast.Call(func=ast.Name(id="len"), args=[first]):
            return f"number of {_name_of(first)}"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name.startswith("_"):
            return name.strip("_").replace("_", " ")  # a text that is made of its arguments, and is none of them
        case ast.Call(args=[first, *_]):
            return _name_of(first)
        case ast.Call(func=ast.Attribute(value=value, attr="strip" | "rstrip" | "upper" | "lower" | "decode")):
            return _name_of(value)
        case ast.Call(func=function):
            return _name_of(function)
        case ast.Subscript(value=value):
            return _name_of(value)
    return "…"


def _own_remedy(kind: type) -> str:
    parameter = inspect.signature(kind).parameters.get("remedy")
    return parameter.default if parameter is not None and isinstance(parameter.default, str) else ""


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "id", getattr(node.func, "attr", "")))


def _calls(tree: ast.Module) -> list[tuple[ast.Call, str]]:
    return [(node, _called(node)) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _said_with(node: ast.Call) -> list[ast.expr]:
    """Message and remedy, as far as they are given."""
    return [*node.args[:1], *(k.value for k in node.keywords if k.arg == "remedy")]


def _left_to_callers(node: ast.Call, function: _Function | None) -> bool:
    """Whether a parameter of the function is the text, or a part of it."""
    if function is None:
        return False
    names = {
        part.id
        for text in _said_with(node)
        for inner in ast.walk(text)
        for part in (inner, getattr(inner, "value", None))
        if isinstance(part, ast.Name) and (part is text or isinstance(inner, ast.FormattedValue | ast.BinOp))
    }
    return not names.isdisjoint(_parameters(function))


def _arguments(call: ast.Call, function: _Function) -> dict[str, ast.expr]:
    """What a call gives for each parameter, or the parameter's default."""
    names = _parameters(function)
    positional = [name for name in names if name not in [a.arg for a in function.args.kwonlyargs]]
    defaults = function.args.defaults
    found = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True)) if defaults else {}
    found |= {a.arg: d for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d}
    found |= dict(zip(positional, call.args, strict=False))
    return found | {k.arg: k.value for k in call.keywords if k.arg in names}


@cache
def raised() -> tuple[Raised, ...]:
    """Each place in the package that makes an error of ours.

    Of a function that is told what to say it is each place that tells it: in its own module, or, for those of
    :data:`_TOLD`, in all.
    """
    modules: dict[str, tuple[_Texts, ast.Module]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = str(path.relative_to(PACKAGE))
        if any(name in errors.__all__ or name in _TOLD for _, name in _calls(tree)) or file == "errors.py":
            dotted = ".".join([PACKAGE.name, *Path(file).with_suffix("").parts]).removesuffix(".__init__")
            modules[file] = _Texts(importlib.import_module(dotted), tree), tree
    found = []
    for file, (texts, tree) in modules.items():
        for node, name in _calls(tree):
            if name not in errors.__all__ or not node.args:
                continue
            function = texts.function_of(node)
            tellers: list[tuple[str, _Texts]] = [(file, texts)]
            if function is not None and _left_to_callers(node, function):
                places = modules if function.name in _TOLD else {file: modules[file]}
                told = [
                    (place, texts.with_given({n: (of, e) for n, e in _arguments(call, function).items()}))
                    for place, (of, its_tree) in places.items()
                    for call, called in _calls(its_tree)
                    if called == function.name
                ]
                tellers = told or tellers
            for place, teller in tellers:
                found += _said(node, name, teller, place)
    return tuple(dict.fromkeys(found))


def _rules_of(error: str, docstring: str) -> tuple[str, ...]:
    """Of the function, and what it says of this error; not what it says of others.

    An error that may pass guards none: something has not answered.
    """
    if issubclass(getattr(errors, error), errors.TransientError):
        return ()
    of_it = re.findall(rf"(?ms)^:raises {error}: (.*?)(?=^:|^\S|\Z)", docstring)
    named = [re.findall(r"\brule: ([a-z]+(?:-[a-z]+)+)", text) for text in of_it]
    kept = re.findall(r"\bRule: ([a-z]+(?:-[a-z]+)+)", docstring)
    return tuple(dict.fromkeys([*(name for names in named for name in names), *kept]))


def _said(node: ast.Call, name: str, texts: _Texts, file: str) -> list[Raised]:
    remedy = next((k.value for k in node.keywords if k.arg == "remedy"), None)
    given = texts.of_remedy(remedy) if remedy is not None else [_own_remedy(getattr(errors, name))]
    remedies = " / ".join(text for text in given if text)
    function = texts.function_of(node)
    rules = _rules_of(name, ast.get_docstring(function) or "") if function is not None else ()
    return [
        Raised(name, *_told_apart(message, remedies), file, rules)
        for message in texts.of(node.args[0])
        if says_something(message)
    ]
