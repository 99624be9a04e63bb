"""The writer that encodes record batches from Arrow columns itself."""
