"""The entry point of the command line: runs a command, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys

from fpsim.cli.exit_codes import BAD_INPUT, INTERRUPTED
from fpsim.errors import install

INSTALL = f"The command line needs typer and rich, which are not installed: {install('cli')}"


def main(arguments: list[str] | None = None) -> None:
    """Run `fpsim` with the given arguments, by default those of the process; always raise SystemExit."""
    try:
        try:
            from fpsim.cli.commands import app
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] not in ("typer", "rich"):
                raise
            _end(INSTALL, BAD_INPUT)
        app(args=arguments, prog_name="fpsim")
    except KeyboardInterrupt:
        _end("Interrupted.", INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, TypeError, ImportError, OSError) as problem:
        _end(" ".join(_sentence(problem).split()), BAD_INPUT)
    except RuntimeError as problem:
        if not type(problem).__module__.startswith("fpsim."):
            raise
        _end(" ".join(str(problem).split()), BAD_INPUT)  # GpuError or CpuError: this machine lacks what is asked for


def _sentence(problem: Exception) -> str:
    """Return the message of an error; for an OSError, the file and the reason, without the error number."""
    if isinstance(problem, OSError) and problem.strerror and problem.filename is not None:
        return f"{problem.filename}: {problem.strerror[0].lower()}{problem.strerror[1:]}."
    return str(problem)


def _end(line: str, code: int) -> None:
    """Print the error message `line` on stderr, and exit the process with the exit code `code`."""
    print(f"fpsim: {line}", file=sys.stderr)
    raise SystemExit(code)
