"""``mpirun --allow-run-as-root -n N COMMAND``: N processes with Open MPI's environment."""

import os
import subprocess
import sys

root, flag, count, *command = sys.argv[1:]
assert (root, flag) == ("--allow-run-as-root", "-n")
ranks = [
    subprocess.Popen(
        command, env={**os.environ, "OMPI_COMM_WORLD_SIZE": count, "OMPI_COMM_WORLD_RANK": str(rank)}
    )
    for rank in range(int(count))
]
codes = [rank.wait() for rank in ranks]
if any(code == -9 for code in codes):
    print("mpirun noticed that process rank 0 exited on signal 9 (Killed).", flush=True)
sys.exit(max((code if code >= 0 else 128 - code for code in codes), default=0))
