"""What writes one transaction: the writers' interface, their options, and each way to write."""
