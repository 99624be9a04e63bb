"""What brokers are asked and told about transactions and topics, one question a file. Nothing is decided here."""
