"""What we put on kafka-python's connections."""

from __future__ import annotations

from types import SimpleNamespace

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol

from airflow_kafka_eos.kafka.client.connections import Pieces, _with_pieces


def test_requests_that_waited_are_sent_together_whatever_they_are_made_of() -> None:
    # kafka-python joins them as bytes; a frame of ours is a list of what lies elsewhere
    connection = SimpleNamespace(parser=None)

    def made(transport: object) -> None:
        connection.parser = KafkaProtocol(client_id="c")

    connection.connection_made = made
    _with_pieces(connection)(None)
    parser = connection.parser
    parser.send_request(ApiVersionsRequest(version=0), correlation_id=1)
    (whole,) = parser.bytes_to_send
    parser.bytes_to_send = [whole, Pieces([b"a", memoryview(b"b")]), whole]
    assert b"".join(parser.send_bytes()) == whole + b"ab" + whole
    assert not parser.send_bytes()
