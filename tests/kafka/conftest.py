"""What the tests of this folder share."""

from __future__ import annotations

import hypothesis
import pytest

from airflow_kafka_eos.kafka.producer.writers import make_writer
from tests.kafka.writers_support import KINDS, an_id, settings_of, target_of

# the first example loads libraries, and the machine may be busy: no test here is about time
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(params=KINDS)
def kind(request):
    """Each of the writers."""
    return request.param


@pytest.fixture
def settings(kafka):
    # librdkafka would wait 30 s for a topic to come back
    return settings_of(kafka.bootstrap_servers, topic_metadata_propagation_max_ms=5000)


@pytest.fixture
def new_writer(kind, settings, request):
    """``new_writer(topics, **changes)``: a writer of its own transactional id, not open yet."""
    made = []

    def create(topics, **changes):
        transactional_id = an_id(f"{request.node.name}-{len(made)}")
        writer = make_writer(kind, settings, target_of(transactional_id, topics, **changes))
        made.append(writer)
        return writer, transactional_id

    yield create
    for writer in made:
        writer.abort()
        writer.close()
