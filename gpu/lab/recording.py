"""Recordings: products of a GPU in a small file, with the model that gives their bits, and how they are replayed."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fpsim.files import whole_file
from fpsim.gpu.lab.model import LibraryModel, ProductProblem, Words, predict
from fpsim.gpu.lab.report import difference

MOST_BYTES = 2_000_000
ARRAYS = ("a", "b", "c", "scale_a", "scale_b", "bias")
FORMAT = 1  # of the file


class Replay(NamedTuple):
    """A recorded product beside the emulator's: which elements are equal, and how many differed when it was made."""

    name: str
    equal: int
    differing: int
    known: int  # elements that differed when it was recorded: 0 unless no model gave the hardware's bits
    first: str = ""


class Entry(NamedTuple):
    """A product with what the hardware gave, and the model that fits best."""

    name: str
    problem: ProductProblem
    output: Words
    model: LibraryModel
    differing: int


def store(path: Path, entries: Sequence[Entry], about: dict[str, str], left_out: Sequence[str] = ()) -> list[str]:
    """Write as many entries as have room; a sentence for each of the others comes back."""
    chosen: list[Entry] = []
    without: list[str] = []
    size = 0
    for entry in entries:
        more = sum(len(zlib.compress(array.tobytes(), 6)) + 300 for array in _arrays(entry).values())
        if size + more > MOST_BYTES - 30_000:
            without.append(f"{entry.name}: the file would have more than {MOST_BYTES} bytes.")
        else:
            chosen.append(entry)
            size += more
    data: dict[str, Any] = {}
    for i, entry in enumerate(chosen):
        data |= {f"{i}.{name}": array for name, array in _arrays(entry).items()}
    described = [{"name": e.name, "unit": e.problem.unit, "out": e.problem.out, "model": e.model._asdict(),
              "differing": e.differing} for e in chosen]  # fmt: skip
    text = json.dumps({"format": FORMAT, "about": about, "entries": described, "left_out": [*left_out, *without]})
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        np.savez_compressed(file, meta=np.frombuffer(text.encode(), np.uint8), **data)
    return without


def _arrays(entry: Entry) -> dict[str, Words]:
    """Everything of an entry that is an array."""
    arrays = {name: getattr(entry.problem, name) for name in ARRAYS}
    return {name: np.asarray(x) for name, x in arrays.items() if x is not None} | {"d": entry.output}


def replay(path: str | Path) -> list[Replay]:
    """Compute what a recording holds on the CPU, and compare.

    Args:
      path: of a file that `record` wrote.

    Returns:
      One `Replay` (name, equal, differing, known, first) per product.

    Raises:
      ValueError: no recording, a damaged one, or one of another version.

    Example:
      >>> from fpsim.gpu.lab.recording import replay
      >>> from pathlib import Path
      >>> [entry for file in Path("tests/gpu/recordings").glob("*.npz") for entry in replay(file) if entry.differing]
      []
    """
    found = []
    with _opened(path) as data:
        meta = _meta(data, path)
        for i, entry in enumerate(meta["entries"]):
            arrays = {name: data[f"{i}.{name}"] for name in (*ARRAYS, "d") if f"{i}.{name}" in data}
            output = arrays.pop("d")
            problem = ProductProblem(entry["name"], entry["unit"], out=entry["out"], **arrays)
            of = difference(output, predict(problem, LibraryModel(**entry["model"])), entry["out"])
            equal = of.compared - of.differing
            found.append(Replay(entry["name"], equal, of.differing, entry["differing"], of.first))
    return found


def about_recording(path: str | Path) -> dict[str, str]:
    """The GPU, driver, versions and date of a recording."""
    with _opened(path) as data:
        return dict(_meta(data, path)["about"])


def _opened(path: str | Path) -> Any:
    """Return the arrays of a file as np.load opens them, or raise a ValueError that says what it is instead."""
    try:
        data = np.load(path)
    except FileNotFoundError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as reason:  # NumPy's words are about pickles
        raise ValueError(
            f"{path} must be a recording of fpsim.gpu.record; it is damaged, or no .npz file. Record it again."
        ) from reason
    if not isinstance(data, np.lib.npyio.NpzFile):
        raise ValueError(f"{path} must be a recording of fpsim.gpu.record; it holds one array of NumPy.")
    return data


def _meta(data: Any, path: str | Path) -> dict[str, Any]:
    """What a recording says of itself."""
    if "meta" not in data:
        raise ValueError(f"{path} is no recording of fpsim.gpu.record: it has no meta.")
    meta: dict[str, Any] = json.loads(data["meta"].tobytes().decode())
    if meta.get("format") != FORMAT:
        raise ValueError(f"{path} has format {meta.get('format')}; this version reads {FORMAT}. Record it again.")
    return meta
