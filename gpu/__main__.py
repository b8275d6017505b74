"""The command `python -m fpsim.gpu` with its experiments on a GPU: validate, bench, record, train, choices."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

EXPERIMENTS = ("validate", "bench", "record", "train", "choices")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment that the first argument names; return its exit code, or 2 if there is no such experiment.

    arguments: the command line after the program's name; None for that of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in EXPERIMENTS:
        named = f"got {words[0]!r}" if words else "none was named"
        print(f"python -m fpsim.gpu runs {', '.join(EXPERIMENTS)}; {named}.", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"fpsim.gpu.experiments.{words[0]}").main(words[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
