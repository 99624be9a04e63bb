"""What a visible load tells others: asset events, OpenLineage datasets."""
