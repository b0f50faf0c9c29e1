import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[2] / "build_configs" / "smollm2-135m__int8-wo-kv_auto__cpu.yaml"


class Machine:
    """A user's shell with a store of its own."""

    def __init__(self, home):
        self.home = home
        self._environment = {**os.environ, "TRTKIT_HOME": str(home)}

    def run(self, *arguments, **options):
        command = [sys.executable, "-m", "trtkit", *map(str, arguments)]
        return subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
            **options,
        )

    def start(self, *arguments):
        command = [sys.executable, "-m", "trtkit", *map(str, arguments)]
        return subprocess.Popen(command, env=self._environment, stderr=subprocess.PIPE, text=True)

    def keep_up(self):
        """Start `trtkit up --keep`; return the process, the proxy's gRPC address and its metrics URL."""
        process = self.start("up", CONTRACT, "--keep", "--requests", 1)
        lines = iter(process.stderr.readline, "")
        where = next(line for line in lines if line.startswith("proxy: ")).split()
        next(line for line in lines if line.startswith("up until Ctrl-C"))
        return process, where[2].rstrip(","), where[4]


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    return Machine(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def stack(machine):
    """The whole stack with the real model; return the proxy's gRPC address."""
    process, address, _ = machine.keep_up()
    yield address
    process.send_signal(signal.SIGINT)
    process.wait(30)
    process.stderr.close()
