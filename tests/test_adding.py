"""What a newcomer adds is a row: a format, a chip with a unit, a rounding mode, a library, each added here and run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import fpsim as fp
from fpsim.casts.explain import explain
from fpsim.formats import named, rounding
from fpsim.matrix_units import catalogue
from fpsim.matrix_units.chips import CHIPS, Chip, capability_of, resolve
from fpsim.matrix_units.matrix_unit import Rule, row
from fpsim.schedules import Chain, Schedule
from fpsim.schedules.arguments import chip_of
from fpsim.schedules.call import Call, Library
from fpsim.schedules.catalogue import LIBRARIES
from fpsim.testing import assert_bits_equal
from tests.kit.processes import ROOT, python
from tests.kit.sweeps import in_turn
from tests.oracles import casts
from tests.oracles import schedules as written
from tests.oracles.units.rows import dot_add_rows, normal, random_rows, wide
from tests.products.checks import results
from tests.schedules.checks import job, spread

Patch = pytest.MonkeyPatch
SAMPLE = np.linspace(-40, 40, 4001)


# ---- a float format


@pytest.fixture
def e3m3(monkeypatch: Patch) -> fp.Format:
    for table in ("NAMED", "ALIASES", "AMBIGUOUS"):
        monkeypatch.setattr(named, table, dict(getattr(named, table)))
    return named._row("E3M3", 3, 3, infinities=False, nan="top", source="here", aliases="my_fp7", ambiguous="fp7")


def test_a_format_is_one_row(e3m3: fp.Format) -> None:
    assert fp.format("e3m3") is fp.format("my-FP7") is e3m3
    assert named.names()[-1] == "E3M3"
    codes = fp.encode(SAMPLE, "e3m3", overflow="saturate")
    assert_bits_equal(codes, casts.encode_all(SAMPLE, e3m3, overflow="saturate"))
    assert_bits_equal(fp.decode(codes, e3m3, dtype=np.float64), casts.values(e3m3)[codes])
    assert "4.25 in E3M3" in str(explain(4.25, "my_fp7"))


def test_a_spelling_that_several_formats_share_names_none_of_them(e3m3: fp.Format) -> None:
    with pytest.raises(ValueError, match=rf"one of the {len(named.names())} .*got 'fp7'\. Did you mean 'E3M3'\?"):
        fp.format("fp7")
    with pytest.raises(AssertionError, match="half names FP16 already"):
        named._row("E6M9", 6, 9, aliases="half", source="here")


# ---- a chip with a matrix unit


@pytest.fixture
def nova(monkeypatch: Patch) -> fp.MatrixUnit:
    chip = Chip("N1", "NVIDIA", "nova", "sm_200", (20, 0), 100, "a", source="here")
    unit = row("nova_e5m2_f32", "e5m2 e5m2 f32", Rule.FUSED, "8 18 -126 23", "inferred", "here", "mma")
    monkeypatch.setitem(CHIPS, chip.name, chip)
    monkeypatch.setitem(catalogue.ROWS, unit.name, unit)
    return unit


def test_a_chip_and_a_unit_are_a_row_each(nova: fp.MatrixUnit) -> None:
    assert fp.unit("nova_e5m2_f32") is nova
    assert fp.units("Nova") == (nova,)
    assert resolve("20.0").chip is resolve("nova").chip is CHIPS["N1"]
    assert capability_of("nova") == (20, 0)
    assert chip_of("sm_200a", "cuBLAS", ("hopper", "nova")).chip.arch == "nova"


@pytest.mark.parametrize("kind", [normal, wide])
def test_a_new_unit_multiplies_as_the_oracle_does(nova: fp.MatrixUnit, kind: object) -> None:
    rows = random_rows(nova, kind, 40, 24)  # type: ignore[arg-type]
    want = dot_add_rows(rows, nova)
    assert_bits_equal(fp.dot_add(rows.a, rows.b, rows.c, nova), want)
    chained = fp.matmul(rows.a[:1], rows.b.T, accumulate="nova_e5m2_f32")
    zeros = np.zeros(len(rows.b), nova.d.dtype)
    assert_bits_equal(results(chained)[0], fp.dot_add(np.broadcast_to(rows.a[:1], rows.b.shape), rows.b, zeros, nova))


def test_every_unit_has_a_chip() -> None:
    assert {unit.arch for unit in fp.units()} == {chip.arch for chip in CHIPS.values()}


# ---- a rounding mode


ROW = """\
    HALF_DOWN = (
        31, "half_down takes the nearer neighbour",
        lambda odd, negative: ABOVE_HALF, (False, False),
        "my_half_down",
    )

"""
BRANCH = """\
        if mode == 31:
            return word(rest > half)
"""
USES = """
import numpy as np
import fpsim as fp
from fpsim.scaling.clipping import bounds

for fmt in (fp.E4M3, fp.E2M1):
    values = fp.decode(np.arange(fmt.max_code + 1, dtype=np.uint8), fmt, dtype=np.float64)
    middles = (values[1:] + values[:-1]) / 2
    for x, want in ((middles, values[:-1]), (np.nextafter(middles, np.inf), values[1:])):
        for sign in (1, -1):
            codes = fp.encode(sign * x, fmt, rounding="half-down")
            assert (fp.decode(codes, fmt) == sign * want).all(), (fmt, x, codes)
assert bounds(fp.E4M3, fp.Rounding.HALF_DOWN, 32) == (-464, 464)
assert bounds(fp.E2M1, fp.Rounding.HALF_DOWN, 32) == (-7, 7)
ones = np.float16([1, -1])
for rounding, more in (("half_down", 0), ("nearest_away", 1)):
    got = fp.add(ones, ones * np.float16(2.0**-11), rounding=rounding)
    assert (got == ones * np.float16(1 + more * 2.0**-10)).all(), (rounding, got)
fp.testing.check_quantizer(lambda x: fp.quantize(x, "e4m3", rounding="my_half_down"), "e4m3", rounding="half_down")
try:
    fp.testing.check_quantizer(lambda x: fp.quantize(x, "e4m3"), "e4m3", rounding="half_down")
except AssertionError as report:
    assert "it takes ties to the even code" in str(report), report
else:
    raise AssertionError("to nearest even is another mode")
print(fp.explain(4.25, "e4m3", rounding="my_half_down"))
"""


def test_a_mode_is_a_row_of_facts_and_a_branch(tmp_path: Path) -> None:
    """Members of an enumeration cannot be added later, so that a copy of the package gets them."""
    shutil.copytree(ROOT / "fpsim", tmp_path / "fpsim", ignore=shutil.ignore_patterns("__pycache__"))
    for file, before, added in (("formats", "    @property\n", ROW), ("core", "        if mode == UP:\n", BRANCH)):
        source = tmp_path / "fpsim" / file / "rounding.py"
        text = source.read_text()
        assert before in text
        source.write_text(text.replace(before, added + before, 1))
    # the usual folder keeps kernels by their content, so that those of this mode are compiled once
    told = python(USES, tmp_path, NUMBA_OPT="1")
    assert "halfway, and half_down takes the neighbour toward zero" in told


@in_turn("word", casts.MODES)
@in_turn("negative", [False, True])
def test_the_facts_of_a_mode_are_what_the_oracle_does(word: str, negative: bool) -> None:
    mode = rounding.rounding_mode(word)
    for steps in (8, 9):  # an even and an odd significand of E4M3
        start = mode.goes_away(odd=steps % 2 == 1, negative=negative)
        for rest in (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)):
            exact = (steps + rest) / 8
            away = casts.round_magnitude(exact, negative, fp.E4M3, word, 0, 32) > Fraction(steps, 8)
            assert away == (rest > start.at or (rest == start.at and start.included))
    assert mode.inward(negative) == casts.rounds_inward(word, negative)


# ---- a library


def blocks(interval: int) -> Schedule:
    return Schedule(f"blocks({interval})", "Mine", "blocks", "hopper", Chain(interval), source="here", operands="f16")


def whole_blocks(call: Call) -> Iterator[str]:
    if call.k % call.schedule.sums.interval:  # type: ignore[union-attr]
        yield f"{call.schedule} takes whole blocks; got K = {call.k}."


@pytest.fixture
def mine(monkeypatch: Patch) -> Schedule:
    library = Library("Mine", (blocks(64),), refusals=(whole_blocks,))
    monkeypatch.setitem(LIBRARIES, library.name, library)
    return library.rows[0]


def test_a_library_is_its_functions_refusals_and_rows(mine: Schedule) -> None:
    x = job(fp.unit("hopper_f16_f32"), spread, (3, 256, 5))
    want = written.promoted(x, written.cut(0, 256, 64))
    assert_bits_equal(results(fp.matmul(x.a, x.b, accumulate=x.unit, schedule=mine)), want.view(np.uint32))
    told = str(fp.schedules.explain(mine, 3, 5, 100))
    assert "on hopper_f16_f32" in told
    assert "Refused by the library: blocks(64) takes whole blocks; got K = 100." in told
    assert fp.schedules.tree(mine, 256) == fp.schedules.tree(fp.schedules.cutlass_2xacc(64), 256, accumulate=x.unit)


def test_what_a_library_refuses_is_refused(mine: Schedule) -> None:
    x = job(fp.unit("hopper_f16_f32"), spread, (3, 100, 5))
    with pytest.raises(ValueError, match=r"blocks\(64\) takes whole blocks; got K = 100"):
        fp.matmul(x.a, x.b, accumulate=x.unit, schedule=mine)
