"""Providers' own operators as submitters, where they are installed, against a server that answers as the platform does.

The server is a stub: it runs what it is sent as :func:`.test_own_steps.application`, in this process. CI has none of
these providers (see tests/adapters/test_own_examples.py).
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_kafka_eos import Submit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.adapters.test_own_examples import EXAMPLES, PAGE, imported, is_there
from tests.airflow.steps import connection
from tests.airflow.test_own_steps import HUNDRED, Run, application, attempts, given, manifests
from tests.airflow.test_repreparing_steps import all_there_once, finish

__all__ = ["given", "manifests"]
Answer = Callable[[str, dict[str, Any]], dict[str, Any]]
SPEC = ["--spec", "{{ kafka_eos.spec }}"]


@contextmanager
def platform(answer: Answer) -> Iterator[int]:
    """A server on the loopback; its port.

    :param answer: gets method and path, and the request's JSON.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size) or b"{}")
            said = json.dumps(answer(f"{self.command} {self.path.partition('?')[0]}", body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def ran(arguments: list[str], fails: bool) -> bool:
    """Whether the application that it was sent is through."""
    assert arguments[0] == "--spec"
    if not fails:
        application(arguments[1])
    return not fails


def livy(port: int, monkeypatch: pytest.MonkeyPatch) -> Submit:
    connection(monkeypatch, "livy_default", "livy", host="127.0.0.1", port=port, schema="http")
    kind = importlib.import_module("airflow.providers.apache.livy.operators.livy").LivyOperator
    name = "orders {{ kafka_eos.attempt }}"
    return Submit(kind, file="/opt/application.py", args=SPEC, polling_interval=1, name=name)


def livy_answers(fails: list[bool]) -> Answer:
    states: list[str] = []

    def answer(asked: str, body: dict[str, Any]) -> dict[str, Any]:
        if asked == "POST /batches":
            states.append("success" if ran(body["args"], fails.pop(0)) else "dead")
            assert body["name"] == f"orders {len(states)}"
        number = len(states) - 1
        return {"id": number, "state": states[-1], "appId": f"app {number}", "from": 0, "total": 0, "log": []}

    return answer


def databricks(port: int, monkeypatch: pytest.MonkeyPatch) -> Submit:
    connection(
        monkeypatch, "databricks_default", "databricks", host="127.0.0.1", port=port, schema="http", password="token"
    )
    module = importlib.import_module("airflow.providers.databricks.operators.databricks")
    return Submit(
        module.DatabricksSubmitRunOperator,
        polling_period_seconds=1,
        existing_cluster_id="c",
        spark_python_task={"python_file": "/Shared/application.py", "parameters": SPEC},
        run_name="orders {{ kafka_eos.attempt }}",
    )


def databricks_answers(fails: list[bool]) -> Answer:
    results: list[str] = []

    def answer(asked: str, body: dict[str, Any]) -> dict[str, Any]:
        if asked.startswith("POST") and asked.endswith("/jobs/runs/submit"):
            results.append("SUCCESS" if ran(body["spark_python_task"]["parameters"], fails.pop(0)) else "FAILED")
            assert body["run_name"] == f"orders {len(results)}"
        state = {"life_cycle_state": "TERMINATED", "result_state": results[-1], "state_message": ""}
        return {"run_id": len(results), "run_page_url": "http://127.0.0.1/run", "state": state}

    return answer


def kubernetes(port: int, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """As docs/any-submitter.md has it."""
    cluster = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "nobody"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "nobody", "user": {}}],
    }
    connection(monkeypatch, "kubernetes_default", "kubernetes", extra={"kube_config": cluster})
    space: dict[str, Any] = {"Submit": Submit}
    (code,) = [code for code in EXAMPLES if imported(code)[1] == "SparkKubernetesOperator"]
    exec(compile(code, PAGE.name, "exec"), space)
    made: Submit = space["submit"]
    return made


def kubernetes_answers(fails: list[bool]) -> Answer:
    """Of its API, and of the Spark operator that looks at its SparkApplications."""
    applications = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/spark/sparkapplications"
    states: dict[str, str] = {}

    def answer(asked: str, body: dict[str, Any]) -> dict[str, Any]:
        method, path = asked.split()
        name = path.removeprefix(f"{applications}/").partition("/")[0]
        if asked == f"POST {applications}":
            assert body["kind"] == "SparkApplication" and body["metadata"]["namespace"] == "spark"
            # what its custom resource must have
            assert {"type", "sparkVersion", "driver", "executor"} <= body["spec"].keys()
            done = ran(body["spec"]["arguments"], fails.pop(0))
            states[body["metadata"]["name"]] = "RUNNING" if done else "FAILED"
            return body
        if path.startswith(f"{applications}/") and method == "GET":
            return {"status": {"applicationState": {"state": states[name], "errorMessage": "it failed"}}}
        if path.startswith("/api/v1/namespaces/spark/pods/"):
            return succeeded(path.split("/")[-1])
        return {"items": [], "metadata": {}}

    return answer


def succeeded(pod: str) -> dict[str, Any]:
    """A driver's pod that has ended."""
    driver = "spark-kubernetes-driver"
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    status = {"name": driver, "ready": False, "restartCount": 0, "image": "i", "imageID": "i", "state": ended}
    return {
        "metadata": {"name": pod, "namespace": "spark", "labels": {}},
        "spec": {"containers": [{"name": driver}]},
        "status": {"phase": "Succeeded", "containerStatuses": [status]},
    }


@pytest.mark.parametrize(
    ("module", "made", "answers"),
    [
        ("airflow.providers.apache.livy", livy, livy_answers),
        ("airflow.providers.databricks", databricks, databricks_answers),
        ("airflow.providers.cncf.kubernetes", kubernetes, kubernetes_answers),
    ],
    ids=["livy", "databricks", "kubernetes"],
)
def test_a_failed_try_and_a_good_one(
    module: str,
    made: Callable[[int, pytest.MonkeyPatch], Submit],
    answers: Callable[[list[bool]], Answer],
    kafka: LocalKafka,
    given: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_there(module):
        pytest.skip(f"{module} is not installed")
    with platform(answers([True, False])) as port:
        load = Run(module, made(port, monkeypatch), **given)
        load("begin")
        with pytest.raises(AirflowException):
            load("submit")
        load("submit")
        assert load("collect")["attempt"] == 2
    assert [row.is_prepared for row in attempts(module)] == [False, True]
    finish(module)
    all_there_once(kafka, module, given["topics"][0], 1, HUNDRED)
