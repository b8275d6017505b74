"""Files of sensitivity reports: JSON that stores every bit."""

from __future__ import annotations

import json
import os
from typing import Any

from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.studies.sensitivity.row import BatchFigures, SensitivityRow
from fpsim.errors import shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole
from fpsim.recipes import written
from fpsim.recipes.linear_recipe import LinearRecipe

KIND, VERSION = "fpsim sensitivity", 1


def write(report: Any, path: str | os.PathLike[str]) -> None:
    """Write a Sensitivity to a JSON file, from which `read` returns equal fields; if that fails, an old file stays."""
    contents = {
        "kind": KIND, "version": VERSION, "model": report.model, "identity": report.identity,
        "layers": dict(report.layers), "convolutions": dict(report.convolutions), "terms": dict(report.terms),
        "losses": list(report.losses), "notes": list(report.notes), "coverage": report.coverage.to_dict(),
        "recipes": {name: written.plain(recipe) for name, recipe in report.recipes.items()},
        "rows": [_plain(row) for row in report.rows], "joint": [_plain(row) for row in report.joint],
    }  # fmt: skip
    write_whole(path_of(path), json.dumps(to_json(contents), indent=1, allow_nan=False) + "\n")


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a report that `write` wrote, name -> value, as keyword arguments of Sensitivity.

    Raise a ValueError for any other file, and for a damaged one.
    """
    file = path_of(path)
    text = file.read_bytes()
    try:
        contents = from_json(json.loads(text.decode()))
        if contents["kind"] != KIND or contents["version"] != VERSION:
            raise ValueError("another kind of file")
        return {
            "rows": tuple(map(_row, contents["rows"])), "joint": tuple(map(_row, contents["joint"])),
            "layers": contents["layers"], "losses": tuple(contents["losses"]), "model": contents["model"],
            "identity": contents["identity"], "notes": tuple(contents["notes"]),
            "coverage": Coverage.from_dict(contents["coverage"]) if "coverage" in contents else NOTHING,
            "convolutions": contents.get("convolutions", {}), "terms": contents.get("terms", {}),  # not in older files
            "recipes": {name: written.structured(x, LinearRecipe) for name, x in contents["recipes"].items()},
        }  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(
            f"path must be a file that Sensitivity.save() of version {VERSION} wrote; got {shown(str(file))}, which is "
            "damaged or something else. Measure again."
        ) from None


def _plain(row: SensitivityRow) -> dict[str, Any]:
    """Return a row as a dictionary that JSON can represent, with the metrics of each batch instead of their means."""
    return {
        "layer": row.layer, "product": row.product, "recipe": row.recipe, "elements": list(row.elements),
        "batches": [list(figures) for figures in row.batches],
    }  # fmt: skip


def _row(fields: dict[str, Any]) -> SensitivityRow:
    """Return the SensitivityRow with the given fields, name -> value, which `_plain` returned and a file stored."""
    left, right = fields["elements"]
    batches = [BatchFigures.of(*map(float, figures)) for figures in fields["batches"]]
    return SensitivityRow.of(fields["layer"], fields["product"], fields["recipe"], (left, right), batches)
