"""The files that `make test` leaves to `make test-long`; the root's conftest.py marks them."""

#: What takes minutes on two quiet cores: an Airflow, a Spark cluster or Spark applications of its own, a fault in every
#: place, a wait for what brokers do late. Files, and whole folders; what shares the standalone Airflow is not named.
#: `make test` says at its end which files took longest: the first of them go here when it takes more than 35 minutes.
LONG = (
    "tests/airflow/test_authored.py",
    "tests/airflow/test_bad_input.py",
    "tests/airflow/test_dags.py",
    "tests/airflow/test_look_ahead.py",
    "tests/airflow/test_on_kill.py",
    "tests/airflow/test_own_spark.py",
    "tests/airflow/test_pooling.py",
    "tests/airflow/test_reload.py",
    "tests/airflow/test_repreparing_steps.py",
    "tests/airflow/test_telling.py",
    "tests/crashes",
    "tests/kafka/test_arrow_memory.py",
    "tests/kafka/test_broken_connections.py",
    "tests/kafka/test_short_tokens.py",
    "tests/packaging",
    "tests/protocol/test_changed_under_way.py",
    "tests/protocol/test_killed.py",
    "tests/protocol/test_pooling.py",
    "tests/protocol/test_repair_large.py",
    "tests/spark/test_application_errors.py",
    "tests/spark/test_formats_application.py",
    "tests/spark/test_object_load.py",
    "tests/spark/test_scope_load_application.py",
    "tests/spark/test_secured_load.py",
    "tests/spark/test_stage_retry.py",
    "tests/spark/test_standalone_cluster.py",
    "tests/spark/test_superseded.py",
    "tests/spark/test_token_load.py",
    "tests/spark/test_ui.py",
    "tests/streams",
    "tests/testing",
)
