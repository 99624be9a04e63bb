"""``airflow-kafka-eos doctor``: what is wrong with cluster, ledger and Spark settings, and the command that corrects it.

:mod:`.look` asks, with requests that change nothing; the other modules judge what was seen, without I/O.
"""
