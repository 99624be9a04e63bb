"""A server does not outlive whoever started it and was killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.faults.zygote import ROOT


def test_a_server_ends_with_whoever_started_it(tmp_path: Path) -> None:
    # a shell's background job, and all it starts, ignores SIGQUIT. PostgreSQL has a handler for it
    sleep = ["env", "--default-signal=QUIT", "sleep", "60"]
    first, server = (subprocess.Popen(sleep) for _ in range(2))
    pid_file = tmp_path / "server.pid"
    pid_file.write_text(f"{first.pid}\nits data\n")
    script = (
        "import pathlib, sys, time\nfrom tests.faults.guarding import guarded\n"
        "with guarded(pathlib.Path(sys.argv[1])):\n    print('ready', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(pid_file)]
    starter = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None and starter.stdout.readline() == "ready\n"
        time.sleep(0.5)
        assert server.poll() is None
        pid_file.write_text(f"{server.pid}\nits data\n")  # started again
        starter.kill()
        starter.wait()
        assert server.wait(20) < 0 and first.poll() is None
    finally:
        for one in (first, server):
            one.kill()
            one.wait()
