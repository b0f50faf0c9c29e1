import socket
import subprocess
from dataclasses import replace

import pytest

from trtkit.errors import InputError
from trtkit.triton.launch import Launch, Mode, Ports, script


def words(argv):
    """Split an MPI command into its ranks."""
    ranks = [[]]
    for word in argv:
        if word == ":":
            ranks.append([])
        else:
            ranks[-1].append(word)
    return ranks


def test_leader_mode_starts_a_server_per_rank_and_only_the_first_loads_everything():
    first, *others = words(Launch("/r", 4, Mode.LEADER).argv)
    assert len(others) == 3
    assert first[:2] == ["mpirun", "--allow-run-as-root"]
    assert not any("model-control" in word for word in first)
    for other in others:
        assert {"--model-control-mode=explicit", "--load-model=tensorrt_llm"} <= set(other)
    prefixes = [next(word for word in rank if "shm-region" in word) for rank in (first, *others)]
    assert len(set(prefixes)) == 4
    assert all("--disable-auto-complete-config" in rank for rank in (first, *others))


def test_orchestrator_mode_is_one_server_that_spawns():
    launch = Launch("/r", 2, Mode.ORCHESTRATOR, ("tensorrt_llm", "tensorrt_llm_draft"))
    assert launch.env == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    (only,) = words(launch.argv)
    assert {"--cuda-memory-pool-byte-size=0:0", "--cuda-memory-pool-byte-size=1:0"} <= set(only)


def test_what_no_mode_can_start_is_refused():
    with pytest.raises(InputError, match="has one engine"):
        Launch("/r", 2, Mode.LEADER, ("a", "b"))
    with pytest.raises(InputError, match="on one machine"):
        Launch("/r", 16, Mode.ORCHESTRATOR, ("a", "b"), nodes=2)
    with pytest.raises(InputError, match="16 are on 2"):
        Launch("/r", 16, Mode.PLAIN, nodes=2)


def test_the_python_api_is_launched_by_mpi_on_several_machines_only():
    assert Launch("/r", 4, Mode.LLMAPI).argv[0].endswith("tritonserver")
    several = Launch("/r", 16, Mode.LLMAPI, nodes=2).argv
    assert several[:7] == ("srun", "--mpi=pmix", "-N", "2", "-n", "16", "trtllm-llmapi-launch")


def test_vllm_completes_its_own_configuration():
    assert "--disable-auto-complete-config" not in Launch("/r", 2, Mode.PLAIN, ("vllm_model",)).argv


@pytest.mark.parametrize(
    "launch",
    [
        Launch("{repo}", 2, Mode.LEADER),
        Launch("{repo}", 1, Mode.ORCHESTRATOR, ("a", "b")),
        Launch("{repo}", 16, Mode.LEADER, nodes=2, ports=Ports(1, 2, 3)),
    ],
)
@pytest.mark.parametrize("ports", [None, Ports(4, 5, 6)])
def test_the_script_runs_exactly_the_command(launch, ports, tmp_path):
    """A shell reads it; ``mpirun`` prints what it is given. Servers on one machine get ports and prefixes of theirs."""
    launch = Launch(**vars(launch) | {"repository": str(tmp_path)})
    (tmp_path / "mpirun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "mpirun").chmod(0o755)
    (tmp_path / "launch.sh").write_bytes(script(launch))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TRTKIT_HOSTFILE": "hosts"}
    if ports:
        env |= {f"TRTKIT_{name.upper()}_PORT": str(port) for name, port in vars(ports).items()}
        env["TRTKIT_SHM_PREFIX"] = "mine"
        launch = replace(launch, ports=ports, shm_prefix="mine")
    else:
        launch = replace(launch, shm_prefix=f"trtkit-{socket.gethostname()}-{launch.ports.grpc}-")
    done = subprocess.run(
        ["bash", tmp_path / "launch.sh"], env=env, capture_output=True, text=True, check=True
    )
    hosts = ["--hostfile", "hosts"] if launch.nodes > 1 else []
    assert done.stdout.splitlines() == [launch.argv[1], *hosts, *launch.argv[2:]]


def test_the_script_says_where_the_repository_has_to_be(tmp_path):
    (tmp_path / "launch.sh").write_bytes(script(Launch("/no/such/place", 1, Mode.LEADER)))
    done = subprocess.run(["bash", tmp_path / "launch.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "mount this repository at /no/such/place" in done.stderr
