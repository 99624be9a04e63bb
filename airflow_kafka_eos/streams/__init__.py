"""Exactly-once sinks of Spark's Structured Streaming: each micro-batch is a load of its own."""
