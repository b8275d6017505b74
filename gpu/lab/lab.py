"""Settings of validations, and helpers that build their cases: hardware, chip, inputs, usual models."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any, NamedTuple

from fpsim.gpu.lab.judge import Models
from fpsim.gpu.lab.model import LibraryModel, ProductProblem
from fpsim.lazy import public
from fpsim.matrix_units.chips import CHIPS, capabilities, find, resolve
from fpsim.schedules.libraries.cublas import ON
from fpsim.testing import operands as inputs

REAL = "fpsim.gpu.hardware"
SPLITS = (*range(1, 17), 18, 20, 22, 24, 28, 32, 33, 36, 40, 44, 48, 56, 64, 66, 72, 88, 96, 128, 132)
Shape = tuple[int, int, int]
Pair = tuple[str, str]

E4M3, MIXED, MIXED_2 = ("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")
# "cancelling" tells orders of sums apart that the others may not, so that every product has it.
SETS = ("cancelling", "normal", "positive", "wide", "subnormal", "special", "adversarial", "ties")
LARGE, HUGE = 1 << 22, 1 << 25  # values of M * N * K above which fewer sets of inputs are used


class Lab(NamedTuple):
    """The settings of a validation.

    Attributes:
      hardware: a module or object with the functions of `fpsim.gpu.hardware`, or the name of a module.
      chip, arch: the architecture, such as "hopper" ("" if its units are not known), and compiler target, "sm_90".
      seed: seed of the inputs.
      small: True for few and small products.
    """

    hardware: Any
    chip: str = "hopper"
    arch: str = "sm_90"
    seed: int = 0
    small: bool = False


def unit_name(chip: str, pair: Pair) -> str:
    """Return the name of a chip's matrix unit for two formats, such as "hopper_e4m3_f32", with sums in float32.

    Args:
      chip: the chip by any of its names; "" for a GPU whose units are not known.
      pair: names of the operands' formats, such as ("e4m3", "e5m2").

    Raises:
      ValueError: the chip's units are not known.
    """
    if not chip:
        known = ", ".join(capability for row in CHIPS.values() for capability in capabilities(row.sm))
        raise ValueError(
            f"no model is known of the matrix units of this GPU; there are models for compute capability {known}. The "
            "casts and the arithmetic can be compared without: parts=['casts', 'arithmetic']."
        )
    names = [{"fp16": "f16"}.get(kind, kind) for kind in pair]
    return f"{resolve(chip).chip.arch}_{names[0] if names[0] == names[1] else 'x'.join(names)}_f32"


def problems_of(lab: Lab, shape: Shape, pair: Pair, sets: Sequence[str], **more: Any) -> tuple[ProductProblem, ...]:
    """Return a product of a shape (M, N, K) for each named set of inputs; in a small validation for one set only.

    lab: settings of the validation. pair: names of the operands' formats. sets: names of sets of inputs, from SETS,
    such as "cancelling". more: further fields of `ProductProblem`.
    """
    unit = unit_name(lab.chip, pair)
    turn = zlib.crc32(repr((shape, pair, sorted(more))).encode()) % len(sets)
    chosen = sets[turn : turn + 1] if lab.small else sets
    return tuple(
        ProductProblem(name, unit, *inputs.product_operands(name, shape, pair, lab.seed), **more) for name in chosen
    )


def sets_for(shape: Shape) -> tuple[str, ...]:
    """Return the names of the sets of inputs to use for a product of shape (M, N, K): fewer for large ones."""
    size = shape[0] * shape[1] * shape[2]
    return SETS if size <= LARGE else SETS[:4] if size <= HUGE else SETS[:2]


def always(models: Sequence[LibraryModel]) -> Models:
    """Return a function that returns `models` whatever a library reports on the algorithm that it used."""
    return lambda _: models


def splits_of(k: int, grain: int) -> list[int]:
    """Return the numbers of slices of K to try: 1, and others in SPLITS that leave at least `grain` terms per slice.

    k: number of terms.
    """
    return [s for s in SPLITS if s <= max(k // grain, 1)]


def named(shape: Shape, *words: str) -> str:
    """Return the name of a product of shape (M, N, K), such as "16 x 16 x 64 bias"; words: texts after the shape."""
    return " ".join([f"{shape[0]} x {shape[1]} x {shape[2]}", *filter(None, words)])


def titled(call: str, options: Mapping[str, Any]) -> str:
    """Return the name of a comparison, such as "encode E4M3": `call`, and the values of its keywords `options`."""
    return " ".join([call, *map(str, options.values())])


def tensor_models(lab: Lab, k: int, fast: bool) -> list[LibraryModel]:
    """Return models of cuBLAS's FP8 products with each number of slices of `splits_of(k, 128)`, and other models.

    The others are "FLAT", instructions one after another over all of K, and CUTLASS's sums, promoted every 32, 64, 128,
    256 or 512 terms. lab: settings of the validation. k: number of terms. fast: True to put cuBLAS with fast
    accumulation first, False to put cuBLAS with promoted sums first.
    """
    models = [cublas_model(lab, split, flag) for flag in (fast, not fast) for split in splits_of(k, 128)]
    return [*models, LibraryModel("FLAT"), *(LibraryModel(f"cutlass_2xacc({n})") for n in (32, 64, 128, 256, 512))]


def cublas_model(lab: Lab, split: int, fast: bool) -> LibraryModel:
    """Return the model of cuBLAS's schedule on the GPU of a validation.

    lab: the settings of the validation, whose `arch` names the GPU. split: number of slices of K. fast: True for FP8's
    fast accumulation, which adds no partial sums to a float32 total.
    """
    words = [repr(lab.arch), *([f"split_k={split}"] if split > 1 else []), *(["fast_accum=True"] if fast else [])]
    return LibraryModel(f"cublas({', '.join(words)})")


def laboratory(silicon: Any, about: dict[str, str], seed: int = 0, small: bool = False) -> Lab:
    """Return the settings of a validation, with the chip that `about` names.

    silicon: an object with the functions of `fpsim.gpu.hardware`. about: facts on the GPU; its "capability", such as
    "9.0", selects the chip. seed: seed of the inputs. small: True for few and small products.
    """
    capability = about.get("capability", "")
    if not capability:
        return Lab(silicon, seed=seed, small=small)
    named = find(capability)
    return Lab(silicon, named.chip.arch if named else "", named.chip.sm if named else "", seed, small)


def about_of(silicon: Any) -> dict[str, str]:
    """Return {name: text} on the GPU, the versions of packages and the date, for the head of reports.

    silicon: the module `fpsim.gpu.hardware`, which runs products on the GPU, or another object with its functions.
    Its function `about` returns {name: text} on the GPU, its driver and its libraries.
    """
    about = dict(silicon.about())
    capability = about.get("capability", "")
    named = find(capability)
    if capability and named is None:
        about["models"] = f"none of matrix units for compute capability {capability}"
    elif named is not None and named.chip.arch not in ON:
        about["models"] = f"units of {named.chip.arch}, without schedules of cuBLAS, which are not known for it"
    version = _version("fpsim-numerics", str(getattr(public(), "__version__", "a checkout")))
    packages = {name: _version(name, "not installed") for name in ("numpy", "numba", "numba-cuda")}
    return {**about, "fpsim": version, **packages, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}


def _version(package: str, missing: str) -> str:
    """Return the version of an installed package, or `missing` if it is not installed."""
    try:
        return version_of(package)
    except PackageNotFoundError:
        return missing
