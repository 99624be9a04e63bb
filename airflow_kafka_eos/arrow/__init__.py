"""engine="arrow": a load is prepared by Airflow's worker itself, from a stream of Arrow record batches. No JVM."""
