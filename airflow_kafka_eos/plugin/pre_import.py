"""What each task of a load imports, imported once by the process that tasks are forked from.

A task of a load takes 0.25 s of a core; 0.17 of them are imports. Airflow's scheduler forks a LocalExecutor's tasks,
and loads plugins before: what is imported there costs no task anything. It is what Airflow itself does for DAG files
(``[dag_processor] parsing_pre_import_modules``). Not in a worker of Celery: it loads plugins only once it has forked,
in each task of every DAG.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Sequence
from importlib import import_module

_log = logging.getLogger(__name__)

#: Of Python alone: none starts a thread, and none is a client's library that must not be forked.
MODULES = (
    "airflow_kafka_eos.task_group",
    "airflow_kafka_eos.decorator",
    "airflow_kafka_eos.kafka_connection",
    "airflow_kafka_eos.ledger.ledger",
    "airflow_kafka_eos.protocol.cleanup.poll",
    "airflow_kafka_eos.protocol.session",
    "airflow_kafka_eos.protocol.stages.begin",
    "airflow_kafka_eos.protocol.stages.commit",
    "airflow_kafka_eos.protocol.stages.decide",
)


def forks_tasks(arguments: Sequence[str]) -> bool:
    """Whether this is ``airflow scheduler`` itself, by its command line.

    :param arguments: ``sys.argv``. The scheduler's children have it as well.
    """
    return list(arguments[1:2]) == ["scheduler"] and multiprocessing.parent_process() is None


def pre_import() -> None:
    """Import them. What cannot be imported is left to the task that wants it, which says so."""
    for name in MODULES:
        try:
            import_module(name)
        except Exception as e:
            _log.debug("%s is not imported ahead: %s", name, e)
