"""Imported by every Python process of a world's Spark driver as it starts, those of the JVM and of executors too."""

from __future__ import annotations

import os

if os.environ.get("STREAM_STRIKES"):
    from tests.faults.worlds import stream_steps

    stream_steps.plant()
