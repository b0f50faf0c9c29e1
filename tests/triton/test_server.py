"""Start, watch and stop: a real tritonserver with one small Python model."""

import os
import signal
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest

from trtkit.errors import EnvironmentLacks, InputError, StartError
from trtkit.triton import environment
from trtkit.triton.folder import write
from trtkit.triton.probe import decisive_lines
from trtkit.triton.repository import render
from trtkit.triton.server import TritonServer

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

OWNER = """
import os, signal, sys
from pathlib import Path
from trtkit.triton.server import TritonServer
server = TritonServer(Path(sys.argv[1]), log_file=Path(sys.argv[2]))
server.start()
server.wait_ready(30, probe=lambda url, timeout_s: None)
print(server._pid, server._shm_prefix, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def no_probe(http_url, timeout_s):
    pass


@pytest.fixture
def small_repo(tmp_path, plan, tokenizer_dir):
    files = {path: content for path, content in render(plan).items() if path.startswith("postprocessing/")}
    config = files["postprocessing/config.pbtxt"].replace(b"count: 2", b"count: 1")
    write(files | {"postprocessing/config.pbtxt": config}, tmp_path / "repo")
    (tmp_path / "repo/postprocessing/1/tokenizer").symlink_to(tokenizer_dir)
    return tmp_path / "repo"


@pytest.fixture
def started(small_repo, tmp_path):
    server = TritonServer(small_repo, log_file=tmp_path / "triton.log", grace_s=1)
    with server:
        server.wait_ready(30, no_probe)
        yield server


def traces(pid, shm_prefix):
    """What a server has left: processes of its session, shared memory, its private folder."""
    members = subprocess.run(
        ["ps", "-o", "pid=", "-s", str(pid)], capture_output=True, text=True, check=False
    )
    regions = [name for name in os.listdir("/dev/shm") if name.startswith(shm_prefix)]
    folders = [name for name in os.listdir("/tmp") if name.startswith(shm_prefix)]
    return members.stdout.split(), regions, folders


NOTHING = ([], [], [])


def test_stop_leaves_nothing(started):
    pid, prefix = started._pid, started._shm_prefix
    processes, regions, folders = traces(pid, prefix)
    assert len(processes) == 2  # the server and its stub
    assert len(regions) == 1
    assert len(folders) == 1
    started.stop()
    assert traces(pid, prefix) == NOTHING
    assert not started.alive()


def test_dead_stub_is_noticed_although_triton_reports_health(started, eventually):
    (stub,) = started._stubs
    assert started.alive()
    os.kill(stub.pid, signal.SIGKILL)
    eventually(lambda: not started.alive(), 2)
    assert f"postprocessing_0_0 (pid {stub.pid}) died" in started.failure()
    with urlopen(f"{started.http_url}/v2/health/ready") as answer:
        assert answer.status == 200


def test_crashed_server_is_noticed_and_cleaned_up(started, eventually):
    os.kill(started._pid, signal.SIGKILL)
    eventually(lambda: "ended with status" in started.failure(), 2)
    assert traces(started._pid, started._shm_prefix) == NOTHING


def test_killed_keeper_takes_the_server_down_and_stop_cleans_up(started, eventually):
    os.kill(started._keeper.pid, signal.SIGKILL)
    eventually(lambda: not started.alive(), 2)
    started.stop()
    eventually(lambda: traces(started._pid, started._shm_prefix) == NOTHING, 2)


def test_killed_owner_leaves_nothing(small_repo, tmp_path, eventually):
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, small_repo, tmp_path / "log"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert owner.returncode == -signal.SIGKILL
    pid, prefix = owner.stdout.split()
    eventually(lambda: traces(pid, prefix) == NOTHING, 15)


def test_model_that_fails_to_load_is_named_with_the_decisive_line(small_repo, tmp_path):
    (small_repo / "postprocessing/1/tokenizer").unlink()
    with (
        pytest.raises(StartError, match=r"(?s)ended before it was ready.*tokenizer\.json.*the whole log is"),
        TritonServer(small_repo, log_file=tmp_path / "triton.log") as server,
    ):
        server.wait_ready(30, no_probe)


def test_failed_probe_is_a_failed_start(started):
    with pytest.raises(StartError, match="test request"):
        started.wait_ready(5)  # the probe asks the BLS model, which this repository lacks


def test_taken_port_is_named_with_its_holder(small_repo, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(StartError, match=rf"gRPC port {port} .*pid {os.getpid()}"):
            TritonServer(small_repo, log_file=tmp_path / "triton.log", grpc_port=port)


def test_dry_run_shows_the_command_and_starts_nothing(small_repo, tmp_path):
    server = TritonServer(small_repo, log_file=tmp_path / "triton.log")
    assert f"--model-repository={small_repo}" in server.command
    assert len({server.http_port, server.grpc_port, server.metrics_port}) == 3
    assert "CUDA_VISIBLE_DEVICES=" in server.dry_run()
    assert not (tmp_path / "triton.log").exists()


def test_folder_without_models_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a model repository"):
        TritonServer(tmp_path, log_file=tmp_path / "triton.log")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("platform.machine", lambda: "aarch64", "x86_64"),
        ("platform.libc_ver", lambda: ("glibc", "2.31"), r"glibc 2\.35, this is glibc 2\.31"),
        ("importlib.metadata.version", lambda _: "2.4.0", "numpy 2.4.0"),
        ("importlib.util.find_spec", lambda _: None, "nvidia-pytriton"),
    ],
)
def test_each_lack_is_named_with_its_fix(monkeypatch, name, value, message):
    monkeypatch.setattr(f"trtkit.triton.environment.{name}", value)
    with pytest.raises(EnvironmentLacks, match=message) as caught:
        environment.find_installation()
    assert caught.value.hint


def test_python_without_shared_library_is_named(monkeypatch):
    monkeypatch.setattr(environment, "PYTHON", "3.99")
    with pytest.raises(EnvironmentLacks, match=r"Triton stub for Python 3\.99"):
        environment.find_installation()
    with pytest.raises(EnvironmentLacks, match=r"libpython3\.99"):
        environment._find_libpython()


def test_looking_for_tritonserver_does_not_import_pytriton():
    code = "import sys; from trtkit.triton.environment import find_installation; find_installation(); "
    subprocess.run([sys.executable, "-c", code + "assert 'pytriton' not in sys.modules"], check=True)


def test_noise_of_a_machine_without_gpu_is_not_decisive():
    log = (
        'E1130 16:04:37.075141 8991 server.cc:241] "CudaDriverHelper has not been initialized."\n'
        "E1130 16:04:37.630386 8991 model_lifecycle.cc:642] \"failed to load 'x' version 1: Internal: boom\"\n"
        'I1130 16:04:37.730386 8991 server.cc:305] "Waiting"\n'
    )
    assert decisive_lines(log) == ["\"failed to load 'x' version 1: Internal: boom\""]
