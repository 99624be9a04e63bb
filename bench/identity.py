"""Under which names the benchmarks write; nobody else's transactions are ever ended (rule 6)."""

from __future__ import annotations

LEDGER = "00000be9c4"
NAMESPACE = "bench"
