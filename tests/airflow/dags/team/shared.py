"""A module of the bundle that its files in sub-folders import by its place under the bundle's root."""

from __future__ import annotations


def worded(word, number):
    return f"{word} {number}"
