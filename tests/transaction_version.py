"""``transaction.version`` of a cluster that runs, as ``kafka-features.sh`` sets it."""

from __future__ import annotations

from kafka.protocol.admin.cluster import UpdateFeaturesRequest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire

_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3


def finalize(bootstrap_servers: str, level: int) -> None:
    """Finalize this level, 0 to 2, upwards or downwards; brokers go by it a moment later."""
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version",
        max_version_level=level,
        upgrade_type=_UPGRADE if level > 1 else _UNSAFE_DOWNGRADE,
    )
    request = UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=[update], validate_only=False)
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": bootstrap_servers}), timeout_s=20) as wire:
        answer = wire.send_to_any(request)
    assert answer.error_code == 0, answer
