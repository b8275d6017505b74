"""The typer app of `fpsim`, and the decorator that registers its commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

import fpsim
from fpsim.cli.exit_codes import INTERRUPTED

app = typer.Typer(
    name="fpsim",
    help="Low-precision floating point, emulated bit for bit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    """Print the version and exit if `wanted`, the value of the option --version."""
    if wanted:
        typer.echo(f"fpsim {fpsim.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Emulate low-precision floating point bit for bit."""


def command(
    to: typer.Typer = app, *, resumes: bool = False, options: Mapping[str, str] | None = None, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that registers a command of `fpsim` or of a group of commands, and reports Ctrl-C.

    Errors of the functions that the command calls begin with the name of a Python argument, such as "micro_batches";
    the command names its option instead, "--micro-batches".

    Args:
      to: the app or the group.
      resumes: True if repeating the call continues where an interrupted one stopped; the message says so.
      options: beginning of a message -> the option, for arguments whose option has another name.
      settings: further arguments of typer's `command`.
    """
    said = "Interrupted. The same call resumes where this one stopped." if resumes else "Interrupted."

    def register(function: Callable[..., None]) -> Callable[..., None]:
        """Register the function, and return it unchanged."""
        names = [name for name in inspect.signature(function).parameters if "_" in name]
        written = {name: f"--{name.replace('_', '-')}" for name in names} | dict(options or {})

        @functools.wraps(function)
        def run(*arguments: Any, **keywords: Any) -> None:
            try:
                function(*arguments, **keywords)
            except KeyboardInterrupt:  # typer would exit with code 1
                typer.echo(f"fpsim: {said}", err=True)
                raise typer.Exit(INTERRUPTED) from None
            except (TypeError, ValueError) as reason:
                name = next((name for name in written if str(reason).startswith(f"{name} ")), None)
                if name is None:
                    raise
                raise ValueError(written[name] + str(reason).removeprefix(name)) from reason

        to.command(**settings)(run)
        return function

    return register
