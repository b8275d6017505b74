"""Digests of short runs of six recipes, which are the same on every machine: tests/data/training_digests.json.

`python -m tests.train.recorded_digests` writes them again, after a change of the arithmetic of training that
`fpsim.train.record.CHANGES` explains.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import fpsim as fp
from fpsim.train.record import VERSION

FILE = Path(__file__).parents[1] / "data" / "training_digests.json"
STEPS, BATCH, CONTEXT = 20, 8, 16  # 128 tokens, a block of the FP8 recipes
FIRST = 3  # steps after which other processors are compared
RECIPES = ("FP32", "BF16", "FP16_MASTERS", "DEEPSEEK_V3", "FP8_DELAYED", "NVFP4")


def recorded() -> dict[str, Any]:
    """Return the text, the version of the arithmetic, and the digests of each recipe after 3 and after 20 steps."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def trained(recipe: str | fp.train.Recipe, folder: Path, **keywords: Any) -> fp.train.Run:
    """Train by a recipe on the recorded text, which is written into a folder."""
    text = folder / "text.txt"
    text.write_bytes(recorded()["text"].encode())  # the same line ends on every system
    settings: dict[str, Any] = {"steps": STEPS, "batch": BATCH, "context": CONTEXT, "measure": 0, **keywords}
    return fp.train.run(recipe, text=text, **settings)


def first_digest(recipe: str) -> str:
    """Return the digest after the first 3 of 20 steps."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_bytes(recorded()["text"].encode())
        settings = fp.train.Settings(steps=STEPS, batch=BATCH, context=CONTEXT, measure=0, text=text)
        trainer = fp.train.Trainer(fp.recipes.TRAINING[recipe], settings)
    rows = [trainer.step() for _ in range(FIRST)]
    return str(rows[-1]["digest"])


def main() -> None:
    """Write the file again."""
    found = recorded()
    with tempfile.TemporaryDirectory() as folder:
        runs = {recipe: trained(recipe, Path(folder)) for recipe in RECIPES}
    digests = {recipe: run.digest for recipe, run in runs.items()}
    first = {recipe: run.rows[FIRST - 1]["digest"] for recipe, run in runs.items()}
    found |= {"version": VERSION, "digests": digests, f"after {FIRST} steps": first}
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
