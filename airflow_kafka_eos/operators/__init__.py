"""begin, prepare, decide, commit: thin Airflow adapters of the protocol."""
