"""What Airflow's providers manager is told: it fits Airflow's schemas, and names what is there, all of it."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import jsonschema
from airflow.dag_processing.bundles.base import BaseDagBundle
from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink, BaseSensorOperator
from airflow.triggers.base import BaseTrigger

from airflow_kafka_eos.config import provider_config
from airflow_kafka_eos.get_provider_info import LEDGER_CONNECTION, get_provider_info
from airflow_kafka_eos.hooks import KafkaEosLedgerHook
from airflow_kafka_eos.ledger.location import BACKENDS, LEDGER_CONN_TYPE
from tests import public_api


def test_what_the_provider_tells_airflow_fits_airflows_schemas() -> None:
    for name in ("provider_info.schema.json", "provider.yaml.schema.json"):
        schema = json.loads(files("airflow").joinpath(name).read_text())
        # the second is of Airflow's own providers: stricter, and it wants what their releases are made by
        del schema["required"]
        jsonschema.validate(get_provider_info(), schema)
    options = provider_config()["kafka_eos"]["options"]
    assert all(o["description"] and o["example"] and isinstance(o["default"], str) for o in options.values())


def test_what_the_provider_names_is_there_and_nothing_of_its_kind_is_left_out() -> None:
    kinds: dict[str, type] = {
        "operators": BaseOperator,
        "sensors": BaseSensorOperator,
        "triggers": BaseTrigger,
        "hooks": BaseHook,
        "bundles": BaseDagBundle,
    }
    info = get_provider_info()
    public = {module: names for module, names in public_api.public().items() if module != "airflow_kafka_eos"}
    for kind, base in kinds.items():
        ((_, named),) = [(one["integration-name"], one["python-modules"]) for one in info[kind]]
        found = {module: own(import_module(module), base) for module in named}
        assert all(found.values()), f"{kind}: {found}"
        # sensors are operators, too
        others = set() if kind != "operators" else set(info["sensors"][0]["python-modules"])
        missed = [m for m in public if m not in named and m not in others and own(import_module(m), base)]
        assert missed == [], kind
    for name in info["extra-links"]:
        module, _, link = name.rpartition(".")
        assert issubclass(getattr(import_module(module), link), BaseOperatorLink)
    root = Path(__file__).parents[2]
    assert all((root / guide.removeprefix("/")).is_file() for guide in info["integrations"][0]["how-to-guide"])


def own(module: ModuleType, base: type) -> list[str]:
    """The classes of a kind that a module defines."""
    defined = {name: v for name, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__}
    return [name for name, found in defined.items() if issubclass(found, base)]


def test_the_form_and_the_hook_name_the_same() -> None:
    module, _, name = LEDGER_CONNECTION["hook-class-name"].rpartition(".")
    assert (module, name) == (KafkaEosLedgerHook.__module__, KafkaEosLedgerHook.__name__)
    assert LEDGER_CONNECTION["connection-type"] == KafkaEosLedgerHook.conn_type == LEDGER_CONN_TYPE
    assert LEDGER_CONNECTION["hook-name"] == KafkaEosLedgerHook.hook_name
    assert tuple(LEDGER_CONNECTION["conn-fields"]["backend"]["schema"]["enum"]) == BACKENDS
