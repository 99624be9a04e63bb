"""Transactional ids: one id, one meaning; another load's or another deployment's never looks like ours.

Rule: only-our-ids.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.errors import InvalidNameError
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.naming import (
    MAX_LENGTH,
    AttemptRef,
    IdRole,
    PooledId,
    TransactionalId,
    check_length,
    name_prefix,
    namespace_prefix,
    parse,
    prefix,
    slot_prefix,
)
from tests.values import any_ids, attempts, ledger_ids, loads, names, pooled_ids, transactional_ids

LEDGER = "0123456789"
LOAD = LoadIdentity("airflow", "orders", "2013-01-01")


def test_an_id_looks_as_documented() -> None:
    assert str(TransactionalId(LOAD, LEDGER, 3, 7, 42)) == "airflow.0123456789.orders.2013-01-01.3-7-42"
    of_all = TransactionalId(LOAD, LEDGER, 3, role=IdRole.LOAD)
    assert (str(of_all), of_all.spark_partition) == ("airflow.0123456789.orders.2013-01-01.3-load", None)
    assert str(TransactionalId(LOAD, LEDGER, 3, role=IdRole.PROBE)) == "airflow.0123456789.orders.2013-01-01.3-probe"


@given(transactional_ids)
def test_an_id_survives_its_own_text(tid: TransactionalId) -> None:
    assert TransactionalId.parse(str(tid)) == tid


@given(transactional_ids, transactional_ids)
def test_two_ids_never_share_a_text(one: TransactionalId, other: TransactionalId) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(transactional_ids)
def test_an_id_is_plain_ascii_without_control_characters(tid: TransactionalId) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_%.-]+", str(tid))


@given(loads, transactional_ids)
def test_no_load_s_prefix_starts_another_load_s_id(load: LoadIdentity, tid: TransactionalId) -> None:
    # listing by prefix must not find a neighbour's transactions
    assert str(tid).startswith(prefix(load, tid.ledger_id)) == (load == tid.load)


@given(names, transactional_ids)
def test_no_namespace_s_prefix_starts_another_namespace_s_id(namespace: str, tid: TransactionalId) -> None:
    same = namespace == tid.load.namespace
    assert str(tid).startswith(namespace_prefix(namespace, tid.ledger_id)) == same


@given(ledger_ids, transactional_ids)
def test_another_ledger_s_id_never_starts_with_our_prefix(ledger_id: str, tid: TransactionalId) -> None:
    assert str(tid).startswith(prefix(tid.load, ledger_id)) == (ledger_id == tid.ledger_id)


@given(st.text())
def test_whatever_parses_is_canonical(text: str) -> None:
    tid = TransactionalId.parse(text)
    assert tid is None or str(tid) == text


@given(transactional_ids, st.data())
def test_a_changed_id_is_another_id_or_none(tid: TransactionalId, data: st.DataObject) -> None:
    text = str(tid)
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.text(".-%0aA~é", max_size=2)) + text[at + data.draw(st.integers(0, 2)) :]
    parsed = TransactionalId.parse(changed)
    assert parsed is None or str(parsed) == changed
    assert parsed != tid or changed == text


def test_a_pooled_id_looks_as_documented() -> None:
    ref = AttemptRef(LOAD, LEDGER, 3, slot=2)
    assert str(ref.task_id(7, 1)) == "airflow.0123456789.orders.p2-7-1"
    assert str(ref.common_id(IdRole.LOAD)) == "airflow.0123456789.orders.p2-load"
    assert str(ref.common_id(IdRole.PROBE)) == "airflow.0123456789.orders.p2-probe"
    own = AttemptRef(LOAD, LEDGER, 3)
    assert str(own.task_id(7, 42)) == "airflow.0123456789.orders.2013-01-01.3-7-42"
    assert str(own.common_id(IdRole.LOAD)) == "airflow.0123456789.orders.2013-01-01.3-load"


@given(any_ids)
def test_an_id_of_either_kind_survives_its_own_text(found: TransactionalId | PooledId) -> None:
    assert parse(str(found)) == found


@given(any_ids, any_ids)
def test_no_two_ids_of_either_kind_share_a_text(
    one: TransactionalId | PooledId, other: TransactionalId | PooledId
) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(pooled_ids, transactional_ids)
def test_neither_kind_is_read_as_the_other(pooled: PooledId, own: TransactionalId) -> None:
    assert TransactionalId.parse(str(pooled)) is None
    assert PooledId.parse(str(own)) is None


@given(pooled_ids, loads, attempts)
def test_only_the_attempt_with_the_slot_owns_its_ids(pooled: PooledId, load: LoadIdentity, number: int) -> None:
    own = LoadIdentity(pooled.namespace, pooled.load_name, load.key)
    ref = AttemptRef(own, pooled.ledger_id, number, pooled.slot)
    assert ref.owns(pooled)
    assert str(pooled).startswith(ref.id_prefix)
    assert not replace(ref, slot=None).owns(pooled)
    assert not replace(ref, slot=pooled.slot + 1).owns(pooled)
    assert not replace(ref, ledger_id="f" * 10).owns(pooled) or pooled.ledger_id == "f" * 10
    assert replace(ref, load=load).owns(pooled) == (own == load)
    incrementing = TransactionalId(own, pooled.ledger_id, number, 0, 0)
    assert not ref.owns(incrementing), "an attempt has ids of one kind"
    assert replace(ref, slot=None).owns(incrementing)
    assert not ref.owns(None)


@given(loads, pooled_ids)
def test_no_load_s_own_prefix_starts_a_pooled_id(load: LoadIdentity, pooled: PooledId) -> None:
    assert not str(pooled).startswith(prefix(load, pooled.ledger_id))


@given(st.text())
def test_whatever_parses_as_pooled_is_canonical(text: str) -> None:
    found = PooledId.parse(text)
    assert found is None or str(found) == text


@given(any_ids)
def test_every_id_of_a_load_name_starts_with_its_prefix(found: TransactionalId | PooledId) -> None:
    name = found.load.name if isinstance(found, TransactionalId) else found.load_name
    assert str(found).startswith(name_prefix(found.namespace, found.ledger_id, name))
    if isinstance(found, PooledId):
        assert str(found).startswith(slot_prefix(found.namespace, found.ledger_id, name))


@given(loads)
def test_where_an_incrementing_id_fits_a_pooled_one_does(load: LoadIdentity) -> None:
    try:
        check_length(load, LEDGER)
    except InvalidNameError:
        return
    longest = PooledId(load.namespace, LEDGER, load.name, 10**9 - 1, 10**10 - 1, 10**9 - 1)
    assert len(str(longest)) <= MAX_LENGTH


@pytest.mark.parametrize(
    "text",
    [
        "airflow.0123456789.orders.p-0-0",
        "airflow.0123456789.orders.p01-0-0",
        "airflow.0123456789.orders.p1-00-0",
        "airflow.0123456789.orders.p1-0",
        "airflow.0123456789.orders.p1-0-0-0",
        "airflow.0123456789.orders.p1-load-0",
        "airflow.0123456789.orders.p1-Load",
        "airflow.0123456789.orders.P1-0-0",
        "airflow.0123456789.orders.1-0-0",
        "airflow.0123456789.orders.p1-0-0\n",
        "airflow.0123456789.p1-0-0",
        "airflow.0123456789..p1-0-0",
        ".0123456789.orders.p1-0-0",
        "airflow.012345678A.orders.p1-0-0",
        "air%66low.0123456789.orders.p1-0-0",
        "airflow.0123456789.orders.2013.p1-0-0",
    ],
)
def test_what_is_no_pooled_id_of_ours_does_not_parse(text: str) -> None:
    assert PooledId.parse(text) is None


@pytest.mark.parametrize(
    "numbers", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, None, 0), (0, 0, None), (10**9, 0, 0)], ids=str
)
def test_numbers_that_do_not_fit_a_pooled_id_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidNameError):
        PooledId("airflow", LEDGER, "orders", *numbers)
    with pytest.raises(InvalidNameError):
        PooledId("airflow", LEDGER, "orders", 0, 0, 0, role=IdRole.LOAD)


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "my-app-0", "connect-cluster-1", "a.b.c", "a.b.c.d.e", "....", "a.0123456789.b.c.d"),
        "airflow.0123456789.orders.2013.1-0",  # a number short
        "airflow.0123456789.orders.2013.1-0-0.x",  # a part too many
        "airflow.0123456789.orders.2013.0-0-0",  # attempts start at 1
        "airflow.0123456789.orders.2013.01-0-0",  # not canonical
        "airflow.0123456789.orders.2013.1-00-0",
        "airflow.0123456789.orders.2013.1-0-00",
        "airflow.0123456789.orders.2013.1-0--1",
        "airflow.0123456789.orders.2013.\u0661-0-0",
        "airflow.0123456789.orders.2013.1-0-0\n",
        "airflow.0123456789.orders.2013.0-load",
        "airflow.0123456789.orders.2013.01-load",
        "airflow.0123456789.orders.2013.1-Load",
        "airflow.0123456789.orders.2013.1-load-0",
        "airflow.0123456789.orders.2013.1-load\n",
        "airflow.0123456789.orders.2013.1-task",
        "airflow.0123456789.orders.2013.1-",
        "airflow.0123456789.orders.2013.1",
        "airflow.012345678.orders.2013.1-0-0",  # no ledger id
        "airflow.0123456789a.orders.2013.1-0-0",
        "airflow.012345678X.orders.2013.1-0-0",
        "airflow.012345678A.orders.2013.1-0-0",
        ".0123456789.orders.2013.1-0-0",  # empty names
        "airflow.0123456789..2013.1-0-0",
        "airflow.0123456789.orders..1-0-0",
        "air%66low.0123456789.orders.2013.1-0-0",  # %66 is f: written as f, or not ours
        "a%2eb.0123456789.orders.2013.1-0-0",  # %2E in lower case
        "a~b.0123456789.orders.2013.1-0-0",
        "a b.0123456789.orders.2013.1-0-0",
        "é.0123456789.orders.2013.1-0-0",
        "%C3.0123456789.orders.2013.1-0-0",  # half a character
        "%00.0123456789.orders.2013.1-0-0",  # decodes to what no load may be called
        "%.0123456789.orders.2013.1-0-0",
    ],
)
def test_a_foreign_id_is_nobody_s_error(text: str) -> None:
    assert TransactionalId.parse(text) is None


@pytest.mark.parametrize("role", [IdRole.LOAD, IdRole.PROBE])
def test_an_id_of_the_whole_attempt_belongs_to_no_spark_partition(role: IdRole) -> None:
    for numbers in ((0, 0), (None, 0), (0, None)):
        with pytest.raises(InvalidNameError, match="do not fit"):
            TransactionalId(LOAD, LEDGER, 1, *numbers, role=role)  # type: ignore[misc]
    for missing in ((None, None), (None, 0), (0, None)):
        with pytest.raises(InvalidNameError, match="do not fit"):
            TransactionalId(LOAD, LEDGER, 1, *missing)


@pytest.mark.parametrize(
    "numbers",
    [(0, 0, 0), (-1, 0, 0), (1, -1, 0), (1, 0, -1), (10**9, 0, 0), (1, 10**10, 0), (1, 0, 10**19)],
)
def test_numbers_that_would_not_come_back_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidNameError, match="do not fit") as refused:
        TransactionalId(LOAD, LEDGER, *numbers)
    assert (refused.value.load, refused.value.attempt) == (str(LOAD), numbers[0])


@pytest.mark.parametrize("ledger_id", ["", "012345678", "01234567890", "012345678G", "012345678A", "012345678."])
def test_a_ledger_id_that_would_not_come_back_is_refused(ledger_id: str) -> None:
    with pytest.raises(InvalidNameError, match="do not fit"):
        TransactionalId(LOAD, ledger_id, 1, 0, 0)


@given(loads)
def test_a_load_that_passes_the_length_check_never_outgrows_the_column(load: LoadIdentity) -> None:
    longest = len(str(TransactionalId(load, LEDGER, 10**9 - 1, 10**10 - 1, 10**19 - 1)))
    if longest <= MAX_LENGTH:
        check_length(load, LEDGER)
    else:
        with pytest.raises(InvalidNameError, match=f"{longest} characters long") as refused:
            check_length(load, LEDGER)
        assert f"by {longest - MAX_LENGTH} characters" in refused.value.remedy


def test_the_length_check_is_exact_at_its_border() -> None:
    def named(length: int) -> LoadIdentity:
        return LoadIdentity("airflow", "x" * length, "k")

    fits = MAX_LENGTH - len(str(TransactionalId(named(1), LEDGER, 10**9 - 1, 10**10 - 1, 10**19 - 1))) + 1
    check_length(named(fits), LEDGER)
    with pytest.raises(InvalidNameError, match="by 1 characters"):
        check_length(named(fits + 1), LEDGER)


def test_repairs_prepared_together_have_ids_of_their_own_numbers_and_no_others() -> None:
    """Each Spark task attempt of each repair has its own, and an attempt's are none of theirs."""
    again = AttemptRef(LOAD, LEDGER, 7, None, ((3, 8), (0, 7)))
    assert [again.writes(n) for n in range(4)] == [True, False, False, True]
    ids = [again.task_id(0, 1), again.task_id(3, 1), again.task_id(3, 2)]
    assert [str(i).rpartition(".")[2] for i in ids] == ["7-0-1", "8-3-1", "8-3-2"]
    assert all(again.owns(i) for i in ids)
    foreign = [(7, 3), (8, 0), (7, 1), (1, 3)]
    assert not any(again.owns(TransactionalId(LOAD, LEDGER, n, p, 1)) for n, p in foreign)
    assert not again.owns(TransactionalId(LOAD, LEDGER, 7, role=IdRole.LOAD))
    with pytest.raises(InvalidNameError):
        again.task_id(1, 1)
    plain = AttemptRef(LOAD, LEDGER, 7)
    assert [plain.writes(n) for n in range(2)] == [True, True]
    assert plain.owns(TransactionalId(LOAD, LEDGER, 7, 3, 1))


@pytest.mark.parametrize(
    ("number", "slot", "pairs"),
    [(8, None, ((3, 8), (0, 7))), (7, 0, ((0, 7),)), (7, None, ((0, 7), (1, 7))), (7, None, ((0, 7), (0, 8)))],
)
def test_repairs_that_do_not_fit_together_are_refused(
    number: int, slot: int | None, pairs: tuple[tuple[int, int], ...]
) -> None:
    with pytest.raises(InvalidNameError, match="do not fit"):
        AttemptRef(LOAD, LEDGER, number, slot, pairs)
