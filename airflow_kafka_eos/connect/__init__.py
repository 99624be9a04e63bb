"""Spark Connect: prepare's worker is the client, and the executors of a server that runs already write."""
