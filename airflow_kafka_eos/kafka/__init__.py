"""Everything that speaks to a broker."""
