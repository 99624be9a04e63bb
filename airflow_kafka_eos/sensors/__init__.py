"""cleanup and loaded: what waits, deferrable."""
