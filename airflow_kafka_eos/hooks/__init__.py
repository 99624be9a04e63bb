"""Airflow connections to what the protocol needs."""
