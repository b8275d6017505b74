"""Matrix units beside mmasim 2.1.1, the simulator of arXiv:2511.10909: every instruction it has, bit for bit."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles.units.rows import KINDS, Rows, random_rows

torch = pytest.importorskip("torch")
pytest.importorskip("mmasim.arithmetic.fdpa")

Array = npt.NDArray[Any]

ROWS = 300  # of every kind, for every instruction, in make test-slow
STEPS = 2


def mmasim(name: str) -> Any:
    """Return a module of mmasim, without the one that compiles C++ when it is imported; it only wraps the C library."""
    fma = ModuleType("mmasim.arithmetic.fma")
    fma.MMA_FMA = object  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, fma.__name__, fma)
        return pytest.importorskip(name)


nv_ptx, amd = mmasim("mmasim.nv_ptx"), mmasim("mmasim.amd")
isa_mma, isa_wgmma, isa_tcgen05 = (mmasim(f"mmasim.nv_ptx.isa_{name}") for name in ("mma", "wgmma", "tcgen05mma"))
isa_mfma = mmasim("mmasim.amd.isa_mfma")


# ---- every instruction, and the unit that it is


class Peer(NamedTuple):
    """An instruction of mmasim, and the unit that behaves like it."""

    instruction: Any
    unit: MatrixUnit

    @property
    def label(self) -> str:
        words = getattr(self.instruction, "shape_and_type", None) or self.instruction.suffix
        return f"{type(self.instruction).__name__}-{self.instruction.arch}-{words}".replace(" ", "_")


ARCHES = {"Ada Lovelace": "ada", "RTX Blackwell": "blackwell"}


def peer(instruction: Any, a: str, b: str, *, kind: str = "", suffix: str = "") -> Peer:
    """Return the instruction with the unit of these operands."""
    arch = ARCHES.get(instruction.arch, instruction.arch.lower())
    operands = a if a == b else f"{a}x{b}"
    d = "f16" if instruction.d_type == torch.float16 else "f32"
    return Peer(instruction, fp.unit("_".join(part for part in (arch, kind, operands, suffix, d) if part)))


def each(make: Callable[[str, str], Any], shapes: dict[str, list[str]]) -> Iterator[Any]:
    """Yield the instructions of a class; of those that differ in m and n alone, the first."""
    seen = set()
    for arch, names in shapes.items():
        for name in names:
            instruction = make(arch, name)
            key = (arch, instruction.k, *name.split(".")[1:])
            if key not in seen:
                seen.add(key)
                yield instruction


def plain_nvidia() -> Iterator[Peer]:
    """mma, wgmma and tcgen05.mma."""
    for make, shapes in (
        (nv_ptx.MMA, isa_mma.mma_shape_and_type),
        (nv_ptx.WGMMA, isa_wgmma.wgmma_shape_and_type),
        (nv_ptx.TCGen05MMA, isa_tcgen05.tcgen05mma_shape_and_type),
    ):
        for instruction in each(make, shapes):
            if instruction.a_type == torch.float64 or instruction.c_type != instruction.d_type:
                continue  # chains of fma are below; an accumulator that changes its format is no unit
            if (instruction.arch, instruction.k) == ("Turing", 4):
                continue  # Turing runs Volta's instruction as Volta does
            yield peer(instruction, instruction.a_type_ptx, instruction.b_type_ptx)


def scaled_nvidia() -> Iterator[Peer]:
    """Yield NVIDIA's block-scaled instructions."""
    for make, shapes in (
        (nv_ptx.MMABlockScale, isa_mma.mma_block_scale_shape_and_type),
        (nv_ptx.TCGen05MMABlockScale, isa_tcgen05.tcgen05mma_block_scale_shape_and_type),
    ):
        for instruction in each(make, shapes):
            a, b = instruction.a_type_ptx, instruction.b_type_ptx
            if instruction.k == 64:
                name = "nvfp4" if instruction.s_type == torch.float8_e4m3fn else f"mxfp4_block{instruction.block_size}"
                yield Peer(instruction, fp.unit(f"blackwell_{name}_f32"))
            else:
                yield peer(instruction, a, b, kind="mxfp8" if {a, b} <= {"e4m3", "e5m2"} else "mxf8f6f4")


AMD_NAMES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "xf32",
    torch.float8_e4m3fnuz: "fp8",
    torch.float8_e5m2fnuz: "bf8",
}


def matrix_fma() -> Iterator[Peer]:
    """AMD's, but for chains of fma."""
    for arch, suffixes in isa_mfma.arch_mfma_suffix.items():
        seen = set()
        for suffix in suffixes:
            instruction = amd.MFMA(arch, suffix)
            one_k = "1k" if suffix.endswith("_1k") else ""
            key = (instruction.k, instruction.a_type, instruction.b_type, one_k)
            if suffix.endswith("xf32") or instruction.a_type not in (torch.float32, torch.float64):
                if key not in seen:
                    yield peer(instruction, AMD_NAMES[key[1]], AMD_NAMES[key[2]], suffix=one_k)
                seen.add(key)


def distinct(peers: list[Peer]) -> list[Peer]:
    """Return the first of those instructions that compute a unit with the same parameters."""
    found: dict[tuple[object, ...], Peer] = {}
    for one in peers:
        arithmetic = one.instruction.arithmetic_op
        found.setdefault((one.unit.name, type(arithmetic), *vars(arithmetic).items()), one)
    return list(found.values())


# ---- the same operands for both


def tensor(codes: Array, dtype: Any) -> Any:
    """Codes as a tensor of a dtype of their width."""
    return torch.from_numpy(np.ascontiguousarray(codes).view(f"i{codes.itemsize}").copy()).view(dtype)


def operand(codes: Array, instruction: Any, side: str) -> Any:
    """Codes of a or b as mmasim takes them: FP4 in bits 5:2, or two to a byte where the instruction packs them."""
    if getattr(instruction, "packing", 1) == 2:
        return tensor(codes[:, ::2] << 4 | codes[:, 1::2], torch.uint8)
    return tensor(
        codes << 2 if getattr(instruction, f"{side}_type_ptx", "") == "e2m1" else codes,
        getattr(instruction, f"{side}_type"),
    )


def codes_of(result: Any, unit: MatrixUnit) -> Array:
    words: Array = result.view(getattr(torch, f"int{unit.d.fmt.bits}")).numpy()
    return words.view(unit.d.dtype)


def theirs(rows: Rows, peer: Peer) -> Array:
    """Return what mmasim computes."""
    instruction, unit = peer
    d = tensor(rows.c, instruction.c_type)
    if rows.scale_a is None or rows.scale_b is None:
        d = instruction.dpa(operand(rows.a, instruction, "a"), operand(rows.b, instruction, "b"), d)
        return codes_of(d, unit)
    for start in range(0, rows.a.shape[1], unit.terms):
        part = slice(start, start + unit.terms)
        blocks = slice(start // unit.block, (start + unit.terms) // unit.block)
        a, b = operand(rows.a[:, part], instruction, "a"), operand(rows.b[:, part], instruction, "b")
        scales = [tensor(scale[:, blocks], instruction.s_type) for scale in (rows.scale_a, rows.scale_b)]
        d = instruction.dpa(a, b, d, *scales)
    return codes_of(d, unit)


def like_theirs(got: Array, want: Array, unit: MatrixUnit) -> tuple[Array, Array]:
    """Both results without what mmasim cannot know: payloads of NaN on CDNA1 and CDNA2, which are the host's there."""
    if unit.arch in ("cdna1", "cdna2"):
        floats = np.dtype(f"f{got.itemsize}")
        return got.view(floats), want.view(floats)
    return got, want


def differs_for_a_reason(rows: Rows, got: Array, want: Array, unit: MatrixUnit) -> Array:
    """Rows in which mmasim is known to be wrong."""
    if unit.rule is Rule.EVEN_ODD:
        # it drops an accumulator of Inf or NaN beside products from 2**25 on: frexp gives those the exponent of 0.5
        a, b = (np.nan_to_num(fp.decode(codes, element.fmt)) for codes, element in ((rows.a, unit.a), (rows.b, unit.b)))
        largest = (np.frexp(a)[1] - 1 + np.frexp(b)[1] - 1).max(axis=1)
        return np.asarray((largest > unit.fraction_bits) & ~np.isfinite(rows.c.view(np.float32)))
    return np.zeros(len(rows), bool)


def all_kinds(unit: MatrixUnit, steps: int, rows: int) -> Rows:
    """Rows of every kind, one below the other."""
    parts = [random_rows(unit, kind, rows, steps * unit.terms, seed=7) for kind in KINDS]
    columns = (None if column[0] is None else np.concatenate(column) for column in zip(*parts, strict=True))
    return Rows(*columns)  # type: ignore[arg-type]


# ---- the comparison

PEERS = distinct([*plain_nvidia(), *scaled_nvidia(), *matrix_fma()])
CHAINS = [unit for unit in float_units() if unit.a.name in ("f32", "f64")]


@in_turn("peer", PEERS)
@sweep("count", 40, ROWS)
def test_an_instruction_gives_the_bits_of_the_simulator(peer: Peer, count: int) -> None:
    unit = peer.unit
    # mmasim may drop a special accumulator of CDNA3's FP8, so its steps stand alone
    rows = all_kinds(unit, 1 if unit.rule is Rule.EVEN_ODD else STEPS, count)
    got, want = fp.dot_add(rows.a, rows.b, rows.c, unit, **rows.scales()), theirs(rows, peer)
    known = differs_for_a_reason(rows, got, want, unit)
    assert known.mean() < 0.1
    assert_bits_equal(*like_theirs(got[~known], want[~known], unit))


def test_every_unit_but_those_of_other_sources_has_an_instruction() -> None:
    ours = {unit.name for unit in float_units()}
    chains = {unit.name for unit in CHAINS}
    emulated = {unit.name for unit in float_units() if unit.rule is Rule.TWO_PASSES}
    processors = {
        unit.name for arch in ("x86", "arm") for unit in float_units(arch)
    }  # tests/instructions/test_processors.py
    assert {peer.unit.name for peer in PEERS} == ours - chains - emulated - processors


@pytest.mark.parametrize("unit", CHAINS, ids=lambda unit: unit.name)
def test_a_chain_gives_the_bits_of_the_c_library(unit: MatrixUnit) -> None:
    # mmasim calls std::fma once per term; this is the same function without a compiler
    library = ctypes.util.find_library("m")
    if library is None:
        pytest.skip("no C library to take fma from")
    c_type, name = (ctypes.c_float, "fmaf") if unit.a.name == "f32" else (ctypes.c_double, "fma")
    fma = getattr(ctypes.CDLL(library), name)
    fma.restype, fma.argtypes = c_type, [c_type] * 3
    floats = np.dtype(f"f{unit.d.dtype.itemsize}")
    for kind in KINDS:
        rows = random_rows(unit, kind, ROWS, 3, seed=7)
        d = rows.c.view(floats).tolist()
        for k in range(3):
            a, b = rows.a[:, k].view(floats).tolist(), rows.b[:, k].view(floats).tolist()
            d = [fma(x, y, z) for x, y, z in zip(a, b, d, strict=True)]
        assert_bits_equal(fp.dot_add(rows.a, rows.b, rows.c, unit).view(floats), np.array(d, floats))
