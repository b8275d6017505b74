"""Recordings as files: arrays contain the sums behind every metric, and a JSON header describes them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.measures.exponent_range import RangeReport
from fpsim.analysis.measures.sums import ErrorSums
from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.models.monitors import Monitors, Scale, Update
from fpsim.analysis.models.rows import FIELDS, RecordedRow
from fpsim.arrays import Array, format_of, words
from fpsim.exact_json import from_json, to_json
from fpsim.formats.as_json import element_fields, element_from
from fpsim.formats.named import DTYPES, NAMED
from fpsim.scaling.file import ScaledFileError, load, save

KIND = "recording"  # the header's name for this kind of file
RANGE = ("zeros", "infinities", "nans", "amax", "smallest")
ERROR = ("rounding", "overflow", "subnormals", "scale", "scale_bits")
PLAIN = ("float16", "float32", "float64")  # dtypes stored unchanged; others are stored as their bits


class Contents(NamedTuple):
    """Contents of a recording's file.

    Attributes:
      settings: the arguments of the recording as JSON values: model, formats, sample, keep, seed.
      steps, notes, monitors: attributes of `Recording`.
      rows: the rows of the recording.
      kept: (step, layer, tensor) -> stored operand, an array.
      kept_settings: (step, layer) -> settings of a product with stored operands, such as a convolution's stride.
      coverage: the shares of the model's weights and multiplications that were recorded.
      outputs: (step, "", "output") -> stored output of the model, an array.
    """

    settings: dict[str, Any]
    steps: tuple[int, ...]
    notes: tuple[str, ...]
    rows: list[RecordedRow]
    kept: dict[tuple[int, str, str], Array]
    monitors: Monitors
    kept_settings: dict[tuple[int, str], Any]
    coverage: Coverage = NOTHING  # for files without coverage
    outputs: Mapping[tuple[int, str, str], Array] = MappingProxyType({})


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write the contents of a recording to a file, .npz or .safetensors.

    Raises:
      ValueError: the path ends in neither .npz nor .safetensors.
      OSError: the file cannot be written; no partial file is left.
    """
    rows, errors = contents.rows, [report for row in contents.rows for report in row.errors]
    bins = [np.array(row.range.bins, np.int64).reshape(-1, 2) for row in rows]
    arrays: dict[str, Array] = {
        "bins": np.concatenate([np.zeros((0, 2), np.int64), *bins]),
        **{
            name: np.stack([getattr(report.sums, name) for report in errors]) if errors else np.zeros(0)
            for name in ("counts", "totals", "maxima")
        },
    }
    header = {
        "kind": KIND,
        "settings": contents.settings,
        "steps": list(contents.steps),
        "notes": list(contents.notes),
        "rows": [_row_fields(row) for row in rows],
        "kept": stored("kept_", contents.kept, arrays),
        "outputs": stored("output_", contents.outputs, arrays),
        "kept_settings": [[*key, dict(fields)] for key, fields in contents.kept_settings.items()],
        "updates": [list(fields) for fields in contents.monitors.updates],
        "scales": [list(fields) for fields in contents.monitors.scales],
        "coverage": contents.coverage.to_dict(),
    }
    save(path, arrays, to_json(header))


def read(path: str | os.PathLike[str]) -> Contents:
    """Read the contents of a recording from a file, .npz or .safetensors.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged, or is not a recording.
    """
    arrays, plain = load(path)
    header = from_json(plain)
    if header.get("kind") != KIND:
        raise ScaledFileError(f"{path}: wanted a recording, got a file of something else. Save one with r.save(path).")
    monitors = Monitors(
        tuple(Update(*fields) for fields in header["updates"]), tuple(Scale(*fields) for fields in header["scales"])
    )
    kept = loaded("kept_", header["kept"], arrays)
    outputs = loaded("output_", header.get("outputs", []), arrays)
    rows = _rows(header["rows"], arrays)
    settings = {(step, layer): fields for step, layer, fields in header.get("kept_settings", [])}
    notes = tuple(header["notes"])
    coverage = Coverage.from_dict(header["coverage"]) if "coverage" in header else NOTHING
    return Contents(
        header["settings"], tuple(header["steps"]), notes, rows, kept, monitors, settings, coverage, outputs
    )


def stored(
    name: str, tensors: Mapping[tuple[int, str, str], Array], arrays: dict[str, Array]
) -> list[list[Any]]:  # fmt: skip
    """Add tensors to a file's `arrays` as name0, name1 and so on; return a list that describes them.

    The items of the list are [step, layer, tensor, name of the format]. tensors: (step, layer, tensor) -> array. Dtypes
    that files lack, such as bfloat16, are stored as codes.
    """
    described = []
    for i, (key, x) in enumerate(tensors.items()):
        arrays[f"{name}{i}"] = x if x.dtype.name in PLAIN else words(x)
        fmt = format_of(x.dtype)
        assert fmt is not None
        described.append([*key, fmt.name])
    return described


def loaded(name: str, described: list[list[Any]], arrays: Mapping[str, Array]) -> dict[tuple[int, str, str], Array]:
    """Return the tensors that `stored` added to a file's arrays under `name`, as (step, layer, tensor) -> array.

    described: the value that `stored` returned.
    """
    tensors = {}
    for i, (step, layer, which, fmt) in enumerate(described):
        x = arrays[f"{name}{i}"]
        tensors[step, layer, which] = x if x.dtype.name in PLAIN else x.view(DTYPES[NAMED[fmt]])
    return tensors


def _rows(described: list[dict[str, Any]], arrays: dict[str, Array]) -> list[RecordedRow]:
    """Return the rows of a recording from a file's header and arrays.

    described: for each row its fields, its number of exponent bins, and the fields of its errors. arrays: "bins" has
    the bins of all rows one after another, and "counts", "totals" and "maxima" have the sums of all errors.
    """
    rows = []
    first_bin = first_error = 0
    for row in described:
        bins = arrays["bins"][first_bin : first_bin + row["bins"]]
        first_bin += len(bins)
        errors = []
        for error_fields in row["errors"]:
            sums = ErrorSums(*(arrays[name][first_error] for name in ("counts", "totals", "maxima")))
            first_error += 1
            fields_of = {name: error_fields[name] for name in ERROR}
            if math.isnan(error_fields["scale"]):
                fields_of["scale"] = math.nan  # one shared NaN, so that equal reports are equal
            errors.append(ErrorReport(fmt=element_from(error_fields["fmt"]), sums=sums, **fields_of))
        spread = RangeReport(tuple((p, n) for p, n in bins.tolist()), *(row[name] for name in RANGE))
        fields = {**{name: row[name] for name in FIELDS}, "shape": tuple(row["shape"])}
        rows.append(RecordedRow(**fields, range=spread, errors=tuple(errors)))
    return rows


def _row_fields(row: RecordedRow) -> dict[str, Any]:
    """Return the fields of a row, name -> value, as JSON values for the file's header."""
    return {
        **{name: getattr(row, name) for name in FIELDS},
        "shape": list(row.shape),
        **{name: getattr(row.range, name) for name in RANGE},
        "bins": len(row.range.bins),
        "errors": [
            {"fmt": element_fields(report.fmt), **{name: getattr(report, name) for name in ERROR}}
            for report in row.errors
        ],
    }
