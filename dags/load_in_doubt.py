"""A person decides about a load in doubt, from Airflow's own inbox (Required Actions). Triggered by hand, by its name.

To recover looks at everything anew, rolls it forward and repairs what was lost; to give up leaves it as it is for good.
Behind giving up come steps 6 and 7 of docs/howto-on-call.md, A load in doubt: nothing is written by hand before them.
Who answered, and why, is kept in the ledger. Whoever may trigger this DAG and answer it may recover or give up any
load, of any DAG: give it to those who may do that to all DAGs.

Needs the connection `kafka_default`, and a person who answers in Airflow's UI.
"""

from __future__ import annotations

import pendulum
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import DAG, Param, task

from airflow_kafka_eos.config import optional, setting
from airflow_kafka_eos.hooks import KafkaEosHook

with DAG(
    "load_in_doubt",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    params={"namespace": setting("namespace"), "name": Param(type="string"), "key": Param(type="string")},
    tags=["kafka", "exactly-once"],
):
    ask = HITLOperator(
        task_id="ask",
        subject="Load {{ params.namespace }}/{{ params.name }}/{{ params.key }} is not committed: what is to be done?",
        body="`airflow-kafka-eos loads show` says what became of each of its transactions. To give up needs a reason.",
        options=["Recover", "Give up", "Leave it"],
        defaults="Leave it",
        # the form cannot ask for it by what is chosen: act does
        params={"reason": Param("", type="string", description="Why it is given up; the ledger keeps it")},
    )

    @task
    def act(answer, params=None):
        """The same as `airflow-kafka-eos loads recover` and `loads give-up`."""
        from airflow_kafka_eos.load import LoadIdentity
        from airflow_kafka_eos.protocol.repair.recover import give_up, recover

        load = LoadIdentity(params["namespace"], params["name"], params["key"])
        person, (choice,) = answer["responded_by_user"] or {}, answer["chosen_options"]
        by = person.get("name") or "nobody"
        reason = ((answer.get("params_input") or {}).get("reason") or "").strip()
        if choice == "Give up" and not reason:
            raise AirflowFailException(
                f"load {load} is given up with a reason only, and none was given: nothing was changed. Clear ask with "
                "what is downstream, and answer once more, with a reason"
            )
        hook = KafkaEosHook(setting("kafka_conn_id"), optional("ledger_conn_id"))  # as loads have it
        with hook.resolve().session(load.namespace) as session:
            if choice == "Recover":
                return recover(session, load, by=by, deadline_s=300).state.value
            if choice == "Give up":
                return give_up(session, load, by=by, reason=reason).state.value
            return session.ledger.load(load).state.value

    act(ask.output)
