"""However the compiler's process ends, it is an error with a log, or an engine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from trtkit.engine.rtx.compiler import PYTHON, compile_model, compiler_version
from trtkit.errors import EnvironmentLacks, StageError

NETWORK = '{"event": "network", "layers": []}'
FAILED = '{"event": "failed", "message": "the builder made no engine"}'
DONE = '{"event": "done", "engine_bytes": 7, "wall_s": 1.5, "cpu_s": 1.0, "peak_rss_bytes": 9}'


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Put a program into the place of the interpreter that has the compiler."""

    def play(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv(PYTHON, str(path))

    return play


def run(tmp_path: Path, check=lambda _: None):
    steps: list[tuple[str, int, int | None]] = []
    log = tmp_path / "log" / "compile.log"
    done = compile_model(tmp_path / "job.json", log, check, lambda *step: steps.append(step))
    return done, steps


def test_an_engine_is_made_once_the_network_was_looked_at(tmp_path, python):
    python(f"""echo '{NETWORK}'
        read answer; test "$answer" = build || exit 9
        echo '{{"event": "progress", "done": 1, "total": 2}}'
        echo '{DONE}'""")
    seen = []
    done, steps = run(tmp_path, seen.append)
    assert (seen, done.engine_bytes, done.peak_rss_bytes) == ([[]], 7, 9)
    assert steps == [("engine", 1, 2), ("engine", 1, 1)]


def test_a_network_that_is_refused_ends_the_process(tmp_path, python):
    python(f"""echo $$ > {tmp_path}/pid
        echo '{NETWORK}'
        exec sleep 60""")

    def refuse(_):
        raise StageError("not so")

    with pytest.raises(StageError, match="not so"):
        run(tmp_path, refuse)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("script", "said", "way_out"),
    [
        (
            "echo 'no more memory' >&2; kill -9 $$",
            "ended by SIGKILL before it had an engine: no more memory",
            "memory",
        ),
        ("kill -SEGV $$", "ended by SIGSEGV before it had an engine: it said nothing", "read that log"),
        ("exit 3", "ended with status 3", "read that log"),
        (f"printf '%.30s' '{NETWORK}'; kill -9 $$", "ended by SIGKILL before it had an engine", "memory"),
        (f"echo '{NETWORK}'; exec 0<&-; sleep 0.3; kill -9 $$", "ended by SIGKILL", "memory"),
        (
            f"echo '[ERROR] int4 on sm75' >&2; echo '{FAILED}'; exit 1",
            "refused the graph: the builder made no engine; int4 on sm75",
            "read that log",
        ),
    ],
)
def test_an_end_without_an_engine_is_an_error_with_a_log(tmp_path, python, script, said, way_out):
    python(script)
    with pytest.raises(StageError) as caught:
        run(tmp_path)
    assert said in caught.value.message
    assert caught.value.path == str(tmp_path / "log" / "compile.log")
    assert way_out in caught.value.hint


def test_a_python_without_the_compiler_is_an_error_that_names_both_ways_out(python):
    python("echo \"ModuleNotFoundError: No module named 'tensorrt_rtx'\" >&2; exit 1")
    with pytest.raises(EnvironmentLacks, match="No module named") as caught:
        compiler_version()
    assert "trtkit[rtx]" in caught.value.hint
    assert PYTHON in caught.value.hint


def test_a_program_that_is_no_python_is_an_error(monkeypatch):
    monkeypatch.setenv(PYTHON, "/bin/echo")
    with pytest.raises(EnvironmentLacks, match="/bin/echo gives no version"):
        compiler_version()


def test_a_python_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv(PYTHON, "/nowhere/python")
    with pytest.raises(EnvironmentLacks, match="/nowhere/python"):
        compiler_version()


def test_lines_that_a_library_prints_do_not_come_between(tmp_path, monkeypatch):
    """The real child, with a module in the compiler's place that fails while it talks."""
    monkeypatch.setenv(PYTHON, sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "talkative.py").write_text("print('hello'); raise OSError('no device')")
    (tmp_path / "job.json").write_text('{"module": "talkative"}')
    with pytest.raises(StageError, match="no device"):
        run(tmp_path)
    assert "hello" in (tmp_path / "log" / "compile.log").read_text()


def test_a_compiler_whose_trtkit_was_killed_ends_too(tmp_path):
    """The real child, with a module in the compiler's place that takes its time."""
    number = tmp_path / "pid"
    text = "import os, pathlib, time; pathlib.Path('new').write_text(str(os.getpid()))"
    (tmp_path / "slow.py").write_text(f"{text}; os.rename('new', 'pid'); time.sleep(60)")
    (tmp_path / "job.json").write_text('{"module": "slow", "ask": true}')
    code = f"""if True:
        from pathlib import Path
        from trtkit.engine.rtx.compiler import compile_model
        compile_model(Path({str(tmp_path / "job.json")!r}), Path({str(tmp_path / "log")!r}), print, print)"""
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, PYTHON: sys.executable}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as parent:
        _until(number.exists)
        parent.kill()
    child = int(number.read_text())
    try:
        _until(lambda: not _runs(child))
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, 9)


def _until(done, patience_s: float = 20.0) -> None:
    end_s = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Tell whether a process is there; one that nobody has asked after yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
