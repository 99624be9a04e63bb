"""Compile the kernel beside its source (docs/adr/0029): ``python scripts/build_kernel.py``.

It is hatchling's build hook, too: a wheel that is built where there is a C compiler has the kernel, and says for which
platform it is; a wheel that is built without one is for all, and takes slower ways. Either has the DAGs of dags/, for
``airflow-kafka-eos examples``: an editable installation finds them in the clone, and would keep old ones.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]
SOURCE = Path("airflow_kafka_eos/kafka/records/kernel.c")
LIBRARY = SOURCE.with_name("kernel.elf")
#: No -march: what is built on one machine runs on another.
FLAGS = ("-O3", "-std=c11", "-Wall", "-Wextra", "-fPIC", "-shared", "-g0", "-Wl,--build-id=none")


def compile_kernel(root: Path) -> str | None:
    """None when the library is there now, else why it is not."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not sys.platform.startswith("linux"):
        return "it is built for Linux only"
    if shutil.which(compiler[0]) is None:
        return f"there is no C compiler ({compiler[0]})"
    unfinished = root / LIBRARY.with_suffix(f".{os.getpid()}")
    command = [*compiler, *FLAGS, "-o", str(unfinished), str(SOURCE)]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        unfinished.unlink(missing_ok=True)
        return f"{shlex.join(command)} failed: {done.stdout}"
    unfinished.replace(root / LIBRARY)  # whoever has the old one loaded keeps it
    return None


class KernelHook(BuildHookInterface[Any]):
    """See the module."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            dags = (Path(self.root) / "dags").glob("*.py")
            build_data["force_include"] |= {str(path): f"airflow_kafka_eos/dags/{path.name}" for path in dags}
        problem = compile_kernel(Path(self.root))
        if problem is not None:
            (Path(self.root) / LIBRARY).unlink(missing_ok=True)
            self.app.display_warning(f"the kernel is left out, records will cost more CPU: {problem}")
            return
        build_data["artifacts"].append(f"/{LIBRARY}")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"  # nothing of Python's is in it


if __name__ == "__main__":
    why = compile_kernel(ROOT)
    print(f"the kernel is left out: {why}" if why else LIBRARY)
