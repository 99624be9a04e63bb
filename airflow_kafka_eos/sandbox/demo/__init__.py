"""``airflow-kafka-eos demo``: real flights, day by day, through mishaps, counted at the end."""
