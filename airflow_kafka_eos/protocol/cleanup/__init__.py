"""Ending what attempts left behind, found by listing transactions."""
