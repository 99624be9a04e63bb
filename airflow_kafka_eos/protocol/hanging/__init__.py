"""Open transactions that nobody will end: those of others, and markers that a coordinator forgot."""
