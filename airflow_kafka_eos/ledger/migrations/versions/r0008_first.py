"""The first schema. A new ledger is made of ``ledger.tables``, and counts as being at the newest revision.

So this one has nothing to do. The next one is a file beside it, with what brings a ledger of before up to the tables of
its version. There is no downgrade: it would forget decisions, and a forgotten decision is a lost or doubled load.
"""

from __future__ import annotations

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: see above."""
