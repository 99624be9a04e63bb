"""Where a rendered template field of an own operator has one of the load's secrets. Pure.

Airflow keeps the rendered fields and shows them, masked as far as it knows what is secret; a platform shows what it was
sent. No template field is exempt: what operators keep out of sight is none (Docker's ``private_environment``), and a
reference to a platform's secret has no value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from airflow_kafka_eos.operators.marks import attributes

#: What is shorter occurs by chance.
_SHORTEST = 4
#: What is shorter, or shorter than the second and a plain word or number, may be in a path or a name (``airflow``).
_SHORT, _SHORT_WORD = 8, 16
#: What may be a part of a longer name; as a whole it is no chance.
_NAME_LIKE = re.compile(r"[\w.-]+")
# however often JSON is in JSON: behind each backslash is what it stands for, or a backslash
_ESCAPED = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|([nrt]))?")
# a name of a password, not of where one is (secretName), and what may stand between it and the value
_NAMED = r"(?i:(?:password|passwd|passphrase|pwd|client[._-]?secret)\W{1,8}|user[._-]?info\W{1,8}[^\s\"':]*:)"


def shown_secret(fields: Mapping[str, Any], secrets: Iterable[str], beside: Iterable[str] = ()) -> str | None:
    """The field that has one of them, and where in it: ``conf['spark.x']``, ``env_vars[0].value``; never a value.

    As it is, and as JSON, URLs and YAML have it. What may as well be part of a path or a name counts behind the name
    of a password alone, and in a URL's login.

    :param fields: rendered, by their names.
    :param beside: it counts only in a text that has all of these too.
    """
    wanted = [holds for secret in secrets if (holds := _looks_for(secret)) is not None]
    more = tuple(beside)

    def holds_one(text: str) -> bool:
        return all(one in text for one in more) and any(holds(text) for holds in wanted)

    return _place(fields, holds_one, "{}".format, "", set()) if wanted else None


def _place(
    value: Any, holds: Callable[[str], bool], inside: Callable[[Any], str], place: str, seen: set[int]
) -> str | None:
    """:param inside: how what is in it is named, behind its own place."""
    if isinstance(value, str):
        return place if holds(value) else None
    if isinstance(value, Mapping):
        parts = [*value.items()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [*enumerate(value)]
    elif id(value) in seen:
        return None
    else:
        seen.add(id(value))
        parts, inside = [(name, getattr(value, name, None)) for name in attributes(value)], ".{}".format
    for name, part in parts:
        if isinstance(name, str) and holds(name):  # it must not be named
            return f"{place}, in a key" if place else "a key"
        within = place + inside(name)
        if isinstance(part, str):
            found = within if holds(f"{name}={part}") else None
        else:
            found = _place(part, holds, "[{!r}]".format, within, seen)
        if found is not None:
            return found
    return None


def _looks_for(secret: str) -> Callable[[str], bool] | None:
    """Whether a text has it; None where that says nothing."""
    bare = _bare(secret)
    if len(secret) < _SHORTEST or len(bare) < _SHORTEST:
        return None
    forms = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret)}
    if len(bare) < _SHORT or (len(bare) < _SHORT_WORD and (bare.isalpha() or bare.isdigit())):
        any_form = "|".join(re.escape(form) for form in sorted(forms | {_unescaped(secret)}))
        named = re.compile(rf"{_NAMED}(?:{any_form})(?![./-]*\w)|:(?:{any_form})@")
        return lambda text: any(named.search(one) for one in (text, _unescaped(text)))
    if len(secret) < _SHORT_WORD and _NAME_LIKE.fullmatch(secret):
        whole = re.compile(rf"(?<!\w)(?<!\w[-._]){re.escape(secret)}(?!\w)(?![-._]\w)")
        return lambda text: any(whole.search(one) for one in (text, _unescaped(text)))
    return lambda text: any(form in text for form in forms) or bare in _bare(text)


def _bare(text: str) -> str:
    """Without what JSON escapes and YAML folds, in a text and in a secret alike: a key in PEM has several lines."""
    return "".join(_unescaped(text).split())


def _unescaped(text: str) -> str:
    def meant(escaped: re.Match[str]) -> str:
        return chr(int(escaped[1], 16)) if escaped[1] else " " if escaped[2] else ""

    # JSON has a character beyond the first 65,536 as two
    return _ESCAPED.sub(meant, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
