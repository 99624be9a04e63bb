"""The guards of docs/protocol.md's rules, each with the edit that takes it out and the tests that must notice.

A snippet that the code no longer has exactly once fails a test of this folder: a guard that moved takes its row along.
"""

from __future__ import annotations

from tests.mutations.compacting import OF_COMPACTING
from tests.mutations.connect import OF_CONNECT
from tests.mutations.connecting import OF_CONNECTING
from tests.mutations.deciding import OF_DECIDING
from tests.mutations.elsewhere import OF_OTHER_CLUSTERS
from tests.mutations.ending import OF_ENDING
from tests.mutations.forgetting import OF_FORGETTING
from tests.mutations.indexing import OF_INDEXING
from tests.mutations.keys import OF_KEYS
from tests.mutations.leases import OF_LEASES
from tests.mutations.mutation import Mutation
from tests.mutations.operating import OF_OPERATING
from tests.mutations.pooling import OF_POOLING
from tests.mutations.reading_on import OF_READING_ON
from tests.mutations.reattaching import OF_REATTACHING
from tests.mutations.renaming import OF_RENAMING
from tests.mutations.repairs import OF_REPAIRS
from tests.mutations.restored import OF_RESTORED
from tests.mutations.standing_still import OF_STANDING_STILL
from tests.mutations.streaming import OF_STREAMS

__all__ = ["MUTATIONS", "Mutation"]

MUTATIONS: tuple[Mutation, ...] = (
    *OF_DECIDING,
    *OF_ENDING,
    *OF_REPAIRS,
    *OF_POOLING,
    *OF_OPERATING,
    *OF_OTHER_CLUSTERS,
    *OF_FORGETTING,
    *OF_COMPACTING,
    *OF_INDEXING,
    *OF_STANDING_STILL,
    *OF_KEYS,
    *OF_LEASES,
    *OF_CONNECTING,
    *OF_READING_ON,
    *OF_REATTACHING,
    *OF_CONNECT,
    *OF_STREAMS,
    *OF_RENAMING,
    *OF_RESTORED,
)
