import sys

import pytest

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
