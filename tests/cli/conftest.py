import sys

import pytest

from tests.cli.engines import built, write_engine
from trtkit.cli import main


@pytest.fixture
def trtkit(monkeypatch, capsys, tmp_path):
    """Run the command line in this process; return exit code, stdout and stderr."""
    monkeypatch.setenv("TRTKIT_HOME", str(tmp_path / "home"))

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trtkit", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def engine(tmp_path):
    """An engine for an H100 with its manifest."""
    return built(tmp_path / "store")


@pytest.fixture
def foreign(tmp_path):
    """An engine that trtkit did not make."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    write_engine(folder)
    return folder
