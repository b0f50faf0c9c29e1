"""The ``trtkit`` command: one verb, one file, one function in the library."""

from __future__ import annotations

import sys

try:
    from typing import Any

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
        inspect,
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
}
"""Top-level packages that come with an extra."""

app = typer.Typer(
    name="trtkit",
    help="One contract from a Hugging Face checkpoint to SLO-keeping LLM streams from Triton.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_VERBS = (
    *(plan, calibrate, checkpoint, verify, inspect, gate, build, repo, serve),
    *(proxy, up, bench, simulate, explain, doctor),
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
        raise EnvironmentLacks(error.strerror or repr(error), path=error.filename) from error
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_OF:
            raise
        hint = f"pip install 'trtkit[{_EXTRA_OF[package]}]'"
        raise EnvironmentLacks(
            f"this needs the package {package}, which is not installed", hint=hint
        ) from None


def main() -> None:
    """Run the command line; every expected error becomes one message and its exit code."""
    try:
        end_on_signals()
        _run()
    except TrtkitError as error:
        report_error(error)
        sys.exit(error.exit_code)
    except SystemExit as end:
        _tell_usage_error(end.__context__)
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output left (`trtkit plan ... | head`): nothing to say to nobody.
        sys.stderr.close()
        sys.exit(0)


def _tell_usage_error(error: Any) -> None:
    """Tell a program what typer has told the person."""
    if hasattr(error, "format_message"):
        tell_program(InputError(error.format_message(), hint="see trtkit VERB --help"))
