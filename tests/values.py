"""Hypothesis strategies for the values: what a user may really type, and what a broker may really answer."""

from __future__ import annotations

from hypothesis import strategies as st

from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.naming import IdRole, PooledId, TransactionalId
from airflow_kafka_eos.transaction import MAX_PRODUCER_EPOCH, MAX_PRODUCER_ID, PreparedTxnState

#: every Unicode text that a database takes: no NUL, no lone surrogates
any_text = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=20)
#: texts made of what separates and escapes in a transactional id, where a collision would hide
tricky_text = st.text("ab.-%2E~_/01é", min_size=1, max_size=6)
names = st.one_of(any_text, tricky_text)

loads = st.builds(LoadIdentity, names, names, names)
ledger_ids = st.text("0123456789abcdef", min_size=10, max_size=10)
attempts = st.integers(1, 10**9 - 1)
transactional_ids = st.one_of(
    st.builds(
        TransactionalId,
        load=loads,
        ledger_id=ledger_ids,
        attempt=attempts,
        spark_partition=st.integers(0, 10**10 - 1),
        task_attempt_id=st.integers(0, 10**19 - 1),
    ),
    st.builds(
        TransactionalId,
        load=loads,
        ledger_id=ledger_ids,
        attempt=attempts,
        role=st.sampled_from([IdRole.LOAD, IdRole.PROBE]),
    ),
)
pooled_ids = st.one_of(
    st.builds(
        PooledId,
        namespace=names,
        ledger_id=ledger_ids,
        load_name=names,
        slot=st.integers(0, 10**9 - 2),
        spark_partition=st.integers(0, 10**10 - 1),
        number=st.integers(0, 10**9 - 1),
    ),
    st.builds(
        PooledId,
        namespace=names,
        ledger_id=ledger_ids,
        load_name=names,
        slot=st.integers(0, 10**9 - 2),
        role=st.sampled_from([IdRole.LOAD, IdRole.PROBE]),
    ),
)
any_ids = st.one_of(transactional_ids, pooled_ids)
states = st.builds(PreparedTxnState, st.integers(0, MAX_PRODUCER_ID), st.integers(0, MAX_PRODUCER_EPOCH))
