"""What a database calls an error, whatever its driver is."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError


def error_code(error: DBAPIError) -> str | int | None:
    """MySQL's number, else the SQLSTATE; None where the driver gives neither (SQLite, a connection that broke).

    pymysql has an SQLSTATE too, from 1.2 on, which says less than the number: HY000 for most.
    """
    original: Any = error.orig
    if type(original).__module__.partition(".")[0] in ("MySQLdb", "pymysql"):
        number = original.args[0] if original.args else None
        return number if isinstance(number, int) else None
    state = getattr(original, "pgcode", None) or getattr(original, "sqlstate", None)
    return state if isinstance(state, str) else None
