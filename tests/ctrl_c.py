"""A program that a test interrupts as a person at a terminal does."""

from __future__ import annotations

import signal


def heed_ctrl_c() -> None:
    """``preexec_fn`` of such a program. A shell has what it runs in the background ignore Ctrl-C, and that is
    inherited: from a test run, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
