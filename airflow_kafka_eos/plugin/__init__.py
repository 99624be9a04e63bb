"""The page in Airflow's UI: loads, their transactions, and what a person may do about them (docs/page.md)."""
