"""What a mutation is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """:param rule: its name in docs/protocol.md.
    :param guards: what holds as long as the snippet stands.
    :param file: relative to the project's folder, as are the tests.
    :param tests: pytest's node ids; at least one of them must fail. One of the kill table's may end with
        ``[substring]`` of its parameters: see :func:`tests.mutations.apply.arguments`.
    """

    rule: str
    name: str
    guards: str
    file: str
    original: str
    mutated: str
    tests: tuple[str, ...]
