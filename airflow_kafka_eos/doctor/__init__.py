"""``airflow-kafka-eos doctor``: what is wrong with cluster, ledger and Spark settings, and the remedy.

:mod:`.look` asks, with requests that change nothing; the other modules judge what was seen, without I/O.
"""
