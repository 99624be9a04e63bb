"""Airflow's own simple auth manager, and one more rule: a user may be kept to one DAG."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

#: user -> the one DAG that they may see
KEPT_TO = {"stranger": "elsewhere", "neighbour": "orders"}


class OneDagAuthManager(SimpleAuthManager):
    """As FAB's per-DAG permissions do: no id means all DAGs, which is refused to who is kept to one."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **kwargs: Any) -> bool:
        only = KEPT_TO.get(user.username)
        if only is not None and (details is None or details.id != only):
            return False
        return super().is_authorized_dag(user=user, details=details, **kwargs)
