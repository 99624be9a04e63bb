"""Kafka's record format as bytes: batches, compression, digests, and reading a partition's log."""
