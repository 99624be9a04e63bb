"""Spark's side: the ``kafka_eos`` data source, the packaged spark-submit application, the manifest's place."""
