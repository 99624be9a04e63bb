"""Under which names the benchmarks write; nobody else's transactions are ever ended (rule: only-our-ids)."""

from __future__ import annotations

LEDGER = "00000be9c4"
NAMESPACE = "bench"
