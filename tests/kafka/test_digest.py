"""The digest says whether two sets of records are equal, whatever their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.kafka.digest import record_bytes, record_digest
from airflow_kafka_eos.kafka.tally import Tally

_BYTES = st.none() | st.binary(max_size=6)
_RECORD = st.tuples(_BYTES, _BYTES, st.lists(st.tuples(st.text(max_size=3), _BYTES), max_size=2))


@given(_RECORD, _RECORD)
def test_two_records_have_one_digest_only_if_they_are_equal(a, b):
    # a key that ends where a value begins, a null and an empty text: the encoding keeps them apart
    assert (record_digest(*a) == record_digest(*b)) == (a == b)


@given(st.lists(_RECORD, min_size=1, max_size=8), st.randoms())
def test_the_order_of_the_records_does_not_matter(records, random):
    shuffled = records[:]
    random.shuffle(shuffled)
    assert _digest(records) == _digest(shuffled)
    assert _digest(records) != _digest([*records, records[0]])  # written twice must show (no xor)


def test_bytes_count_keys_values_and_headers():
    assert record_bytes(b"ab", None, [("é", b"xyz"), ("h", None)]) == 2 + 2 + 3 + 1


def _digest(records):
    tally = Tally()
    for offset, record in enumerate(records):
        tally.add("t", 0, offset, record_bytes(*record), record_digest(*record))
    return tally.writes()[0].digest
