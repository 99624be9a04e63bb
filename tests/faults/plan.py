"""What all processes of one run are told: the scenario, and where its real parts are. A file in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_kafka_eos.load import LoadIdentity
from tests.faults.scenario import Scenario

LOAD_NAME = "orders"
FILE = "plan.json"


@dataclass(frozen=True)
class Plan:
    """
    :param servers: the brokers' own addresses.
    :param redirects: by side (``ledger side``, ``writers``), by ``host:port`` of a broker, the proxy's ``host:port``.
    :param topics: by number of load, those that it writes to.
    :param began_ms: the run's begin, milliseconds since the epoch: records' own times are counted from here.
    """

    scenario_json: str
    folder: str
    servers: str
    ledger_url: str
    namespace: str
    topics: tuple[tuple[str, ...], ...]
    began_ms: int = 0
    redirects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def scenario(self) -> Scenario:
        return Scenario.from_json(self.scenario_json)

    @property
    def manifests(self) -> str:
        return str(Path(self.folder) / "manifests")

    def key(self, load: int) -> str:
        return f"{self.namespace}-{load}"

    def identity(self, load: int) -> LoadIdentity:
        return LoadIdentity(self.namespace, LOAD_NAME, self.key(load))

    def write(self) -> None:
        (Path(self.folder) / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: str) -> Plan:
        found: dict[str, Any] = json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))
        return cls(**found | {"topics": tuple(map(tuple, found["topics"]))})


@dataclass(frozen=True)
class Order:
    """What one process is to do.

    :param role: see ``scenario.Role``.
    :param owner: the DAG run that it belongs to.
    :param details: what the role needs, as JSON values.
    :param limit_s: it is killed after so many seconds, as by Airflow's ``execution_timeout``.
    """

    role: str
    load: int
    owner: str
    folder: str
    details: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 180.0

    @property
    def party(self) -> str:
        which = "".join(f"-{self.details[k]}" for k in ("partition", "number") if k in self.details)
        return f"{self.role}{which} of {self.owner}"


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    :param killed_by: the signal, 0 for none.
    :param error: what it raised, empty when it succeeded.
    :param final: trying again cannot help: Airflow is told so.
    :param answer: what it returned.
    """

    killed_by: int = 0
    error: str = ""
    final: bool = False
    answer: Any = None

    @property
    def is_well(self) -> bool:
        return not self.killed_by and not self.error
