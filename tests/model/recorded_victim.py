"""A victim of the kill table whose events outlive it: its arguments are the journal and the order, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.crashes.victim import Order, run
from tests.model.recorder import Recorder


def main(journal: str, order: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Recorder(patch, Path(journal))
        run(Order(**json.loads(order)))


if __name__ == "__main__":
    main(*sys.argv[1:])
