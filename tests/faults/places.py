"""The named steps where a process is hit: those of the crash tests, and the driver's. No I/O.

A step names a function of ours and a side of it (``tests/crashes/steps.py``); here it also names the processes that
come by there.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_kafka_eos.load import TransactionScope
from tests.crashes.steps import STEPS, Run, Step, When
from tests.faults.scenario import Role

_STORE = "airflow_kafka_eos.spark.manifest_store:ManifestStore."
_ATTEMPT = "airflow_kafka_eos.spark.attempt_writer:"
#: decide tells Kafka at once what it has recorded, and commit tells it again
_ENDING = (Role.DECIDE, Role.COMMIT)
_BY_PHASE = {"decide": (Role.DECIDE,), "commit": _ENDING, "clean": (Role.CLEANUP,)}
_BY_TARGET = {
    "Ledger.begin": (Role.BEGIN,),
    "Ledger.submit": (Role.PREPARE,),
    "Ledger.mark_prepared": (Role.PREPARE,),
}


@dataclass(frozen=True)
class Place:
    """
    :param roles: which processes come by.
    """

    step: Step
    roles: tuple[Role, ...]

    @property
    def name(self) -> str:
        return self.step.name

    def fits(self, scope: str, writer: str) -> bool:
        """Whether a load that is written so comes by. Steps of the ledger are for every writer."""
        is_writers = Role.TASK in self.roles
        return scope in [s.value for s in self.step.scopes] and (not is_writers or writer in self.step.writers)


def _roles(step: Step) -> tuple[Role, ...]:
    if step.phase in _BY_PHASE:
        return _BY_PHASE[step.phase]
    return next((roles for end, roles in _BY_TARGET.items() if step.target.endswith(end)), (Role.TASK,))


def _is_of_a_second_writer(step: Step) -> bool:
    return step.nth > 1 and _roles(step) == (Role.TASK,)


def _driver(name: str, target: str, when: When, *scopes: TransactionScope) -> Place:
    step = Step(f"driver: {name}", "prepare", target, when, scopes=scopes or tuple(TransactionScope))
    return Place(step, (Role.DRIVER,))


PLACES: tuple[Place, ...] = (
    *(
        Place(step, _roles(step))
        for step in STEPS
        # what the crash tests do a second time in one process is another process's here
        if step.run is not Run.RETRY and not step.target.startswith("tests.") and not _is_of_a_second_writer(step)
    ),
    _driver("the attempt is claimed", _STORE + "claim", When.AFTER),
    _driver("one transaction for all is begun", _ATTEMPT + "_shared_transaction", When.AFTER, TransactionScope.LOAD),
    _driver("all tasks have reported", _ATTEMPT + "AttemptWriter.commit", When.BEFORE),
    _driver("the manifest is written", _STORE + "write", When.AFTER),
)

BY_NAME = {place.name: place for place in PLACES}
