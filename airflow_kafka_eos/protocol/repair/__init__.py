"""A decided load that lost records: copied again, prepared again, or given up."""
