"""A query whose Python processes note what they keep, and how much their collector leaves out; they import this."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from airflow_kafka_eos.kafka.producer.arrow import sent_transaction
from airflow_kafka_eos.streams.messages import Message
from airflow_kafka_eos.streams.options import StreamOptions
from airflow_kafka_eos.streams.source import BatchEnd, BatchWriter, KafkaEosStreams


def notes(checkpoint: str) -> Path:
    return Path(checkpoint).with_name("notes")


def _note(checkpoint: str, what: str) -> None:
    notes(checkpoint).mkdir(exist_ok=True)
    (notes(checkpoint) / f"{what}-{os.getpid()}").write_text(str(gc.get_freeze_count()))


class NotingStreams(KafkaEosStreams):
    @classmethod
    def name(cls) -> str:
        return "noting"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        made = super().streamWriter(schema, overwrite)
        options = StreamOptions.parse(self.options)
        if isinstance(made, BatchEnd):
            return NotingEnd(options)
        _note(options.checkpoint, "begin")
        return NotingWriter(made, options.checkpoint)


class NotingWriter(BatchWriter):
    def __init__(self, made: BatchWriter, checkpoint: str) -> None:
        self.__dict__ |= made.__dict__
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[Any]) -> Message:
        message = super().write(iterator)
        if message.rows:
            _note(self._checkpoint, "task")
            (notes(self._checkpoint) / f"wires-{os.getpid()}").write_text(str(len(sent_transaction._kept)))
        return message


class NotingEnd(BatchEnd):
    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        super().commit(messages, batchId)
        _note(self.options.checkpoint, "end")
