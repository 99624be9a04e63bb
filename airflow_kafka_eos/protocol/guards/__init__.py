"""What must hold before a transaction is touched: whose it is, which cluster, which slot, which caps."""
