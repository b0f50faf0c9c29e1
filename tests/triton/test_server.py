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
from trtkit.triton.stubs import Loading, Stub

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
    assert list(started._folder.glob("python_env_*"))  # Triton's own scratch goes with the folder
    started.stop()
    assert traces(pid, prefix) == NOTHING
    assert not started.alive()


def test_dead_stub_is_noticed_although_triton_reports_health(started, eventually):
    (stub,) = started._stubs
    assert started.alive()
    os.kill(stub.pid, signal.SIGKILL)
    eventually(lambda: not started.alive())
    assert f"postprocessing_0_0 (pid {stub.pid}) died" in started.failure()
    with urlopen(f"{started.http_url}/v2/health/ready") as answer:
        assert answer.status == 200


def test_the_first_failure_stays_and_a_broken_server_stops_quietly(started, eventually):
    os.kill(started._stubs[0].pid, signal.SIGKILL)
    eventually(started.failure)
    first = started.failure()
    started.stop()
    assert started.failure() == first
    assert "terminate called" not in started.log_file.read_text()
    assert traces(started._pid, started._shm_prefix) == NOTHING


def test_crashed_server_is_noticed_and_cleaned_up(started, eventually):
    os.kill(started._pid, signal.SIGKILL)
    eventually(lambda: "ended by SIGKILL" in started.failure())
    assert traces(started._pid, started._shm_prefix) == NOTHING


def test_killed_keeper_takes_the_server_down_and_stop_cleans_up(started, eventually):
    os.kill(started._keeper.pid, signal.SIGKILL)
    eventually(lambda: not started.alive())
    started.stop()
    eventually(lambda: traces(started._pid, started._shm_prefix) == NOTHING)


def test_killed_owner_leaves_nothing(small_repo, tmp_path, eventually):
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, small_repo, tmp_path / "log"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert owner.returncode == -signal.SIGKILL
    pid, prefix = owner.stdout.split()
    eventually(lambda: traces(pid, prefix) == NOTHING)


def test_model_that_fails_to_load_is_named_with_the_decisive_line(small_repo, tmp_path):
    (small_repo / "postprocessing/1/tokenizer").unlink()
    with (
        pytest.raises(
            StartError, match=r"(?s)ended (with status 1 before|while) .*tokenizer\.json.*the whole log is"
        ),
        TritonServer(small_repo, log_file=tmp_path / "triton.log") as server,
    ):
        server.wait_ready(30, no_probe)


def test_process_that_ends_while_its_model_loads_fails_the_start(small_repo, tmp_path):
    (small_repo / "postprocessing/1/model.py").unlink()
    with (
        pytest.raises(
            StartError, match=r"(?s)postprocessing_0_0 ended while .*loading.*model\.py'.*the whole"
        ),
        TritonServer(small_repo, log_file=tmp_path / "triton.log") as server,
    ):
        server.wait_ready(30, no_probe)


def test_instance_counts_as_lost_only_after_its_process_had_time_to_start():
    log = (
        'I1130 17:31:07.3 9 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: m_0_1 (CPU device 0)"'
    )
    loading = Loading()
    assert loading.lost(log, [], 10.0) == []
    assert loading.lost(log, [Stub(1, "m_0_1")], 12.0) == []
    assert loading.lost(log, [], 14.0) == []
    assert loading.lost(log, [], 17.0) == ["m_0_1"]


def test_any_path_can_be_served(small_repo, tmp_path, monkeypatch):
    odd = tmp_path / "sp ace 'ü $(x)"
    odd.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    server = TritonServer(small_repo.rename(odd / "repo"), log_file=odd / "triton.log", grace_s=1)
    with server:
        server.wait_ready(30, no_probe)
        assert server.failure() == ""
    assert traces(server._pid, server._shm_prefix) == NOTHING
    assert sorted(os.listdir(odd)) == ["repo", "triton.log"]


def test_log_that_cannot_be_written_is_refused_before_anything_is_laid_out(small_repo, tmp_path):
    server = TritonServer(small_repo, log_file=tmp_path)
    with pytest.raises(InputError, match="the log cannot be written: Is a directory"):
        server.start()
    assert not server._folder.exists()


def test_interrupted_start_leaves_nothing(small_repo, tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    server = TritonServer(small_repo, log_file=tmp_path / "triton.log")
    monkeypatch.setattr("subprocess.Popen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert not server._folder.exists()


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


def test_same_port_given_twice_is_named(small_repo, tmp_path):
    with pytest.raises(InputError, match="HTTP port and the gRPC port are both 8000"):
        TritonServer(small_repo, log_file=tmp_path / "triton.log", http_port=8000, grpc_port=8000)


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
