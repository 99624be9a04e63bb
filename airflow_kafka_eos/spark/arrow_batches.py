"""How much Spark hands to a Python task at a time. No I/O."""

#: Bounded by bytes: wide rows fit into memory, and of narrow ones many travel at a time. Spark's own 10,000 rows are
#: 1 GB of rows of 100 KB. Four to eight MB were the fastest for rows of 140 bytes and of 1 KiB (docs/benchmarks.md).
ARROW_BATCHES = {
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}
