"""Alembic's folder: the ledger's schema, revision by revision. Run by ``ledger.migrate``."""
