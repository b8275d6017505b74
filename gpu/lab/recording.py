"""Recordings: a GPU's products in a small file, with the models that predict their bits, and their comparison."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fpsim.files import path_of, whole_file
from fpsim.gpu.lab.model import LibraryModel, ProductProblem, Words, predict
from fpsim.gpu.lab.report import difference

MOST_BYTES = 2_000_000
ARRAYS = ("a", "b", "c", "scale_a", "scale_b", "bias")
FORMAT = 1  # version of the file
# The exceptions that reading a damaged .npz file raises; RuntimeError is zipfile's for features that it lacks
DAMAGED = (
    AttributeError, EOFError, KeyError, OSError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class Replay(NamedTuple):
    """The comparison of a recorded product with the emulator's.

    Attributes:
      name: name of the product.
      equal, differing: numbers of elements with equal and with different bits.
      known: number of elements that differed when it was recorded; 0 if a model predicted all bits.
      first: the first difference as text, or "".
    """

    name: str
    equal: int
    differing: int
    known: int
    first: str = ""


class Entry(NamedTuple):
    """A product to record: its inputs, the hardware's bits, the best model, and the number of elements it gets wrong.

    Attributes:
      name: name of the product.
      problem: the product.
      output: the hardware's result, (M, N) words.
      model: the model that fits best.
      differing: number of elements that the model predicts wrongly.
    """

    name: str
    problem: ProductProblem
    output: Words
    model: LibraryModel
    differing: int


def store(path: Path, entries: Sequence[Entry], about: dict[str, str], left_out: Sequence[str] = ()) -> list[str]:
    """Write products to an .npz file of at most 2 MB; return a sentence for each one that does not fit.

    path: the file. entries: the products. about: name -> text on the GPU. left_out: sentences on products that were
    left out before. The file also contains `about` and the sentences on all products that were left out.
    """
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
    """Return {name: array} of an entry's operands, scales and bias that are not None, and "d", the result."""
    arrays = {name: getattr(entry.problem, name) for name in ARRAYS}
    return {name: np.asarray(x) for name, x in arrays.items() if x is not None} | {"d": entry.output}


def replay(path: str | Path) -> list[Replay]:
    """Compute the products of a recording on the CPU, and compare them with the recorded results.

    Args:
      path: a file that `record` wrote.

    Returns:
      One `Replay` for each product: name, numbers of equal and differing elements, number of differing elements when
      it was recorded (`known`), and the first difference as text.

    Raises:
      ValueError: the file is not a recording, is damaged, or has another version.
      FileNotFoundError: there is no such file.

    Example:
      >>> from fpsim.gpu.lab.recording import replay
      >>> from pathlib import Path
      >>> [entry for file in Path("tests/gpu/recordings").glob("*.npz") for entry in replay(file) if entry.differing]
      []
    """
    with opened(path, "fpsim.gpu.record") as data:
        if "meta" not in data:
            raise ValueError(f"{path} must be a recording of fpsim.gpu.record; it has no metadata.")
        try:
            meta = json.loads(data["meta"].tobytes())
            if meta.get("format") == FORMAT:
                return [_replayed(data, i, entry) for i, entry in enumerate(meta["entries"])]
        except DAMAGED as reason:
            raise ValueError(
                f"{path} must be a recording of fpsim.gpu.record; it is damaged. Record it again."
            ) from reason
    raise ValueError(f"{path} has format {meta.get('format')}; this version reads {FORMAT}. Record it again.")


def _replayed(data: Any, i: int, entry: dict[str, Any]) -> Replay:
    """Return the comparison of product i of a recording, whose arrays are `data`; entry: its metadata."""
    arrays = {name: data[f"{i}.{name}"] for name in (*ARRAYS, "d") if f"{i}.{name}" in data}
    output = arrays.pop("d")
    problem = ProductProblem(entry["name"], entry["unit"], out=entry["out"], **arrays)
    of = difference(output, predict(problem, LibraryModel(**entry["model"])), entry["out"])
    return Replay(entry["name"], of.compared - of.differing, of.differing, entry["differing"], of.first)


def opened(path: str | Path, writer: str) -> Any:
    """Open the .npz file `path` by np.load and return it; writer: the function that wrote it, for the error message.

    Raises a ValueError if the file is damaged or not an .npz file, a FileNotFoundError if there is none.
    """
    try:
        data = np.load(path_of(path))
    except FileNotFoundError:
        raise
    except DAMAGED as reason:  # NumPy's words are about pickles
        raise ValueError(
            f"{path} must be a recording of {writer}; it is damaged, or no .npz file. Record it again."
        ) from reason
    if not isinstance(data, np.lib.npyio.NpzFile):
        raise ValueError(f"{path} must be a recording of {writer}; it holds a single NumPy array.")
    return data
