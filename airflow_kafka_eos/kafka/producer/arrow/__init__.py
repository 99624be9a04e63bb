"""Record batches straight from Arrow columns, and the producer that sends them: no row is touched in Python."""
