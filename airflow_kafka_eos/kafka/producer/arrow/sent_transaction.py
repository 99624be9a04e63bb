"""One transaction that a sender writes into: what the writer and the copy of a lost transaction share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from airflow_kafka_eos.errors import BrokerUnavailableError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.find_markers import uuid_of
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import PipelinedWire, Wire
from airflow_kafka_eos.kafka.producer.arrow.sender import Enrolment, Sender
from airflow_kafka_eos.kafka.producer.interface import Tally, confirm
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.naming import AnyId
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

_log = logging.getLogger(__name__)

#: Seconds for requests to coordinators.
ANSWER_S = 60.0

#: By process, for a forked one has the same sockets: the wire that the last transaction has left to the next one.
_kept: dict[int, PipelinedWire] = {}


def wire_to(settings: KafkaSettings, options: ProducerOptions, *, keeps_wire: bool = False) -> PipelinedWire:
    """What a transaction is sent over; it is the caller's. A new one connects with its first request.

    :param keeps_wire: the one that was kept in this process, if it is as good as a new one.
    """
    kept = _kept.pop(os.getpid(), None) if keeps_wire else None
    if kept is not None:
        if kept.settings == settings and kept.is_fresh():
            return kept
        kept.close()
    return PipelinedWire(settings, timeout_s=ANSWER_S, request_timeout_s=options.request_timeout_s)


def keep(wire: PipelinedWire) -> None:
    """For :func:`wire_to`; one for a process, whatever its threads do. Nothing is under way on it."""
    if _kept.setdefault(os.getpid(), wire) is not wire:
        wire.close()


class SentTransaction:
    """See the module.

    :param name: of the transaction; where it goes is in the settings.
    :param wire: to go on with, and to close; None: one of its own.
    :param keeps_wire: the wire is lent, and left to the next transaction where this one ends well.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        name: AnyId,
        options: ProducerOptions,
        wire: PipelinedWire | None = None,
        *,
        keeps_wire: bool = False,
    ) -> None:
        self._settings = settings
        self._name = name
        self._id = str(name)
        self._options = options
        self._tally = Tally()
        self._wire = wire
        self._keeps_wire = keeps_wire
        self._is_confirmed = False
        self._sender: Sender | None = None
        self._state = PreparedTxnState.EMPTY
        self._shared = False

    def _connect(self) -> PipelinedWire:
        if self._wire is None:
            self._wire = wire_to(self._settings, self._options, keeps_wire=self._keeps_wire)
        return self._wire

    def _coordinator(self, wire: Wire) -> Coordinator:
        return Coordinator(wire, namespace=self._name.namespace, ledger_id=self._name.ledger_id)

    def _make_sender(
        self, wire: PipelinedWire, topic_ids: Mapping[str, str], look: Callable[[], object] | None = None
    ) -> Sender:
        enrolment = Enrolment(wire, self._id, self._state, shared=self._shared, look=look)
        ids = {topic: uuid_of(topic_id) for topic, topic_id in topic_ids.items()}
        self._sender = Sender(wire, enrolment, ids, self._options, self._tally)
        return self._sender

    def _flush(self, sender: Sender, sent: str, remedy: str) -> None:
        sender.flush()
        sender.stop()
        if self._tally.records != self._tally.acknowledged:
            raise BrokerUnavailableError(
                f"{self._tally.records} records were {sent}, {self._tally.acknowledged} were acknowledged",
                remedy=remedy,
                transactional_id=self._id,
            )

    def _confirm(self) -> PreparedTransaction:
        assert self._wire is not None
        seen = self._coordinator(self._wire).describe([self._id]).get(self._id)
        confirm(seen, self._state, self._tally.partitions, self._id, shared=self._shared)
        self._is_confirmed = True
        return PreparedTransaction(self._id, self._state)

    def abort(self) -> None:
        """End the transaction, as well as it goes. A shared one is its driver's to end.

        Rule: scope-load-writes-once.
        """
        self._is_confirmed = False
        self._stop()
        if self._wire is None or self._state.is_empty or self._shared:
            return
        try:
            self._coordinator(self._wire).end(PreparedTransaction(self._id, self._state), Verdict.ABORT)
        except Exception as e:
            _log.warning("%s could not be aborted (%s); cleanup or the broker's timeout ends it", self._id, e)

    def close(self) -> None:
        """Free what it holds. A closed connection ends no transaction."""
        self._stop()
        if self._wire is not None:
            if self._keeps_wire and self._is_confirmed:
                keep(self._wire)
            else:
                self._wire.close()
            self._wire = None

    def _stop(self) -> None:
        if self._sender is not None:
            self._sender.stop()
            self._sender = None
