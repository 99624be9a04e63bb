"""Where ledger and Kafka meet: begin, prepare, decide, commit, sweep, and the wait until readers see it.

Every function here may be killed at any line and called again. The ledger is always written before Kafka is
told (rule: decide-before-kafka). Nothing here knows of Airflow or Spark.
"""
