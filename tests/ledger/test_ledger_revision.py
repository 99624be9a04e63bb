"""The revision that each step of a load looks for, without the library that makes it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from airflow_kafka_eos.ledger import migrate, tables


def test_it_is_the_newest_of_the_migrations() -> None:
    assert migrate._check_known(None).get_current_head() == tables.REVISION


def test_opening_a_ledger_that_is_up_to_date_imports_no_alembic(new_url: Callable[[bool], str]) -> None:
    """Each step does it, in a process of its own."""
    url = new_url(False)
    migrate.upgrade(url)
    opens = (
        "import sys; from airflow_kafka_eos.ledger import Ledger; Ledger.open(sys.argv[1], upgrade=True).close(); "
        "print([name for name in sys.modules if name.startswith('alembic')])"
    )
    run = subprocess.run([sys.executable, "-c", opens, url], capture_output=True, text=True, check=False, timeout=60)
    assert run.stdout.strip() == "[]", run.stderr
