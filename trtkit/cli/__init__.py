"""The ``trtkit`` command: one verb, one file, one function in the library."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback

try:
    from pathlib import Path
    from typing import Any, NoReturn

    import typer

    import trtkit
    from trtkit.cli import (
        bench,
        build,
        cache,
        calibrate,
        checkpoint,
        doctor,
        explain,
        export,
        gate,
        health,
        inspect,
        migrate,
        plan,
        proxy,
        repo,
        serve,
        simulate,
        up,
        verify,
    )
    from trtkit.cli.console import report_error, tell_program
    from trtkit.cli.signals import end_on_signals
    from trtkit.errors import EnvironmentLacks, InputError, TrtkitError
except KeyboardInterrupt:  # Ctrl-C before main() can take it
    sys.exit(130)

EXIT_CODES = (
    "Exit codes: 0 done, 1 bug, 2 bad input or usage, 3 could not start, 4 environment lacks something, "
    "5 a stage failed, 6 gate or verification failed, 7 drift found by a check."
)

_EXTRA_OF = {
    "gguf": "gguf",
    "google": "repo",
    "tritonclient": "repo",
    "grpc": "proxy",
    "jinja2": "proxy",
    "prometheus_client": "proxy",
    "tokenizers": "proxy",
    "openvino": "cpu",
    "openvino_genai": "cpu",
    "torch": "calib",
    "transformers": "calib",
    "lm_eval": "lm-eval",
}
"""Top-level packages that come with an extra."""
_WAYS_OUT = {
    errno.ENOENT: "make the folder first, or name another place",
    errno.ENOTDIR: "make the folder first, or name another place",
    errno.EISDIR: "name a file",
    errno.EACCES: "choose a place that this user may write to and read",
    errno.EPERM: "choose a place that this user may write to and read",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOSPC: "free space, or choose another disk",
    errno.EDQUOT: "free space of your quota, or choose another disk",
    errno.EMFILE: "raise the limit on open files (`ulimit -n`)",
}
"""Errors of the operating system, with the way out."""

app = typer.Typer(
    name="trtkit",
    help="One contract from a Hugging Face checkpoint to SLO-keeping LLM streams from Triton.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_VERBS = (
    *(plan, migrate, calibrate, checkpoint, verify, inspect, gate, build, repo, serve),
    *(proxy, up, bench, simulate, explain, health, doctor),
)
for verb in _VERBS:
    verb.register(app)
app.add_typer(cache.app, name="cache")
app.add_typer(export.app, name="export")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"trtkit {trtkit.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Declare the options that stand before any verb."""


def _run() -> None:
    try:
        app()
    except BrokenPipeError:
        raise
    except OSError as error:
        _tell_broken_package(error)
        hint = _WAYS_OUT.get(error.errno or 0, "")
        raise EnvironmentLacks(error.strerror or repr(error), path=error.filename, hint=hint) from error
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_OF:
            raise
        hint = f"pip install 'trtkit[{_EXTRA_OF[package]}]'"
        raise EnvironmentLacks(
            f"this needs the package {package}, which is not installed", hint=hint
        ) from None
    except Exception as error:
        _tell_broken_package(error)
        raise


def _tell_broken_package(error: Exception) -> None:
    """Raise the error of an extra's package that was being imported, from a file that the loader could not load."""
    if isinstance(error, OSError) and error.errno is not None:
        return
    frames = [
        frame.f_globals.get("__name__", "").partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if isinstance(error, (ImportError, OSError)) or frame.f_code.co_name == "<module>"
    ]
    package = next((name for name in frames if name in _EXTRA_OF), None)
    if package is not None:
        hint = f"pip install --force-reinstall 'trtkit[{_EXTRA_OF[package]}]'"
        message = f"the package {package} is installed and cannot be loaded: {error}"
        raise EnvironmentLacks(message, hint=hint) from error


def main() -> None:
    """Run the command line; every expected error becomes one message and its exit code."""
    _prepare_output()
    try:
        end_on_signals()
        _run()
    except TrtkitError as error:
        _report(error)
        sys.exit(error.exit_code)
    except SystemExit as end:
        # Typer takes the error of a pipe without reader for one of its own, and ends with 1.
        if isinstance(end.__context__, BrokenPipeError):
            _leave()
        _tell_usage_error(end.__context__)
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _leave()


def _prepare_output() -> None:
    """Let no message fail for its letters, nor for a stderr that is closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _report(error: TrtkitError) -> None:
    """Report an error; its exit code is told even when nobody reads what it is."""
    try:
        report_error(error)
    except BrokenPipeError:
        _discard_output()


def _leave() -> NoReturn:
    """End well: the reader of our output left (`trtkit plan ... | head`), and there is nothing to say to nobody."""
    _discard_output()
    sys.exit(0)


def _discard_output() -> None:
    """Keep Python from flushing what nobody reads, which would fail once more when it ends."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr.close()


def _tell_usage_error(error: Any) -> None:
    """Tell a program what typer has told the person."""
    if hasattr(error, "format_message"):
        tell_program(InputError(error.format_message(), hint="see trtkit VERB --help"))
