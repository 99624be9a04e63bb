"""``airflow-kafka-eos doctor``: what is wrong with cluster, ledger and Spark settings, and the command that mends it.

:mod:`looking` asks, with requests that change nothing; the other modules judge what was seen, without I/O.
"""
