"""Real parts to try things on: a Kafka that demo, tests and benchmarks start and stop by themselves."""
