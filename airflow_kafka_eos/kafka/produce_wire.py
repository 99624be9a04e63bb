"""A :class:`~airflow_kafka_eos.kafka.wire.Wire` on which several requests may be under way at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.connections import translate
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire

#: More than we ever have under way: kafka-python refuses further requests instead of queueing them.
_NEVER_REFUSED = 1000

#: Gets the response, or the error why there is none.
Answered = Callable[[Any, BaseException | None], None]


class ProduceWire(Wire):
    """For one thread at a time; only :meth:`wake` may be called from another.

    :param request_timeout_s: after so many seconds without an answer a connection is closed.
    """

    def __init__(self, settings: KafkaSettings, *, timeout_s: float, request_timeout_s: float) -> None:
        super().__init__(settings, timeout_s=timeout_s)
        self._manager.config["max_in_flight_requests_per_connection"] = _NEVER_REFUSED
        if "reconnect.backoff.max.ms" not in settings.for_librdkafka():
            # kafka-python's 30 s would outlast a leader that is back at once; the Java client has 1 s
            self._manager.config["reconnect_backoff_max_ms"] = 1000
        self._produce_timeout_ms = int(request_timeout_s * 1000)

    def start(self, node_id: int, request: Any, answered: Answered) -> None:
        """Send a request to a broker without waiting. ``answered`` is called once, from here or from :meth:`turn`,
        and must not send anything that waits."""
        try:
            future = self._manager.send(request, node_id, request_timeout_ms=self._produce_timeout_ms)
        except Exception as e:
            # a broker that the newest metadata do not have any more, or what one said that refused the login
            answered(None, self._explain(e))
            return
        future.add_callback(lambda response: answered(response, None))
        future.add_errback(lambda error: answered(None, self._explain(error)))

    def turn(self, timeout_s: float) -> None:
        """Let what is under way make progress; returns when something did, was woken, or after ``timeout_s``."""
        self._net.poll(timeout_ms=timeout_s * 1000)

    def wake(self) -> None:
        """End a :meth:`turn` that waits. From any thread."""
        self._net.wakeup()

    def transaction_version(self) -> int:
        """The cluster's finalized ``transaction.version`` (KIP-890): 2 where Produce adds partitions by itself."""
        answer = self.send_to_any(
            ApiVersionsRequest(
                client_software_name="airflow-kafka-eos", client_software_version="0", min_version=3
            )
        )
        levels = {f.name: int(f.max_version_level) for f in answer.finalized_features or []}
        return levels.get("transaction.version", 0)

    def _explain(self, error: BaseException) -> KafkaEosError | BaseException:
        return translate(error, self._manager.last_failure, self.settings)
