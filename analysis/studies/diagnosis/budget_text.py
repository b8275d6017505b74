"""Budgets as text that stores every bit, for the folder in which a diagnosis stores its measurements."""

from __future__ import annotations

import json
from typing import Any

from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.studies.budget.report import Budget
from fpsim.analysis.studies.budget.row import BudgetRow, Squares
from fpsim.analysis.studies.budget.tiles import WorstTile, WorstValue
from fpsim.exact_json import from_json, to_json
from fpsim.formats.as_json import element_fields, element_from
from fpsim.formats.element import element_format

FIELDS = ("layer", "product", "shape", "batches", "operands", "formats", "unit", "schedule", "out_fmt", "kind", "parts")


def to_text(budget: Budget) -> str:
    """Return a budget as JSON, from which `from_text` restores an equal budget."""
    rows = [
        {name: _plain(getattr(row, name)) for name in FIELDS}
        | {"squares": list(row.squares), "tiles": [_tile(tile) for tile in row.tiles]}
        for row in budget.rows
    ]
    fields = {name: _plain(getattr(budget, name)) for name in ("recipe", "on", "model", "steps", "notes")}
    return json.dumps(to_json({**fields, "rows": rows, "coverage": budget.coverage.to_dict()}))


def from_text(text: str) -> Budget:
    """Return the budget that `to_text` wrote as JSON.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.diagnosis.budget_text import from_text, to_text
      >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
      >>> with fp.analysis.record(model, keep=1) as r:
      ...     y = model(torch.randn(64, 64))
      >>> budget = fp.analysis.budget(r, recipe="FP8_TENSOR")
      >>> from_text(to_text(budget)) == budget
      True
    """
    fields = from_json(json.loads(text))
    rows = tuple(_row(row) for row in fields["rows"])
    steps, notes = tuple(fields["steps"]), tuple(fields["notes"])
    coverage = Coverage.from_dict(fields["coverage"]) if "coverage" in fields else NOTHING  # in older folders
    return Budget(rows, fields["recipe"], fields["on"], fields["model"], steps, notes, coverage)


def _plain(value: Any) -> Any:
    """Return a value of a budget with lists in place of tuples, also in nested ones, since JSON has no tuples."""
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _tile(tile: WorstTile) -> dict[str, Any]:
    """Return the fields of a tile, name -> value, as values that JSON can represent."""
    fields = {name: _plain(value) for name, value in tile._asdict().items()}
    return fields | {"fmt": None if tile.fmt is None else element_fields(element_format(tile.fmt))}


def _row(fields: dict[str, Any]) -> BudgetRow:
    """Return the BudgetRow whose fields, name -> value, `to_text` wrote as JSON."""
    arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    if "out_format" in arguments:  # its old name, in folders that were saved before
        arguments["out_fmt"] = arguments.pop("out_format")
    tiles = []
    for tile in fields["tiles"]:
        values = tuple(WorstValue(tuple(place), *rest) for place, *rest in tile["values"])
        fmt = None if tile["fmt"] is None else element_from(tile["fmt"])
        spans = {"rows": tuple(tile["rows"]), "columns": tuple(tile["columns"])}
        tiles.append(WorstTile(**tile | spans | {"values": values, "fmt": fmt}))
    return BudgetRow(**arguments | {"squares": Squares(*fields["squares"]), "tiles": tuple(tiles)})
