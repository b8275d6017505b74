"""Products without matrix units, against lists of lanes that are written as the kernels' authors describe them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import product
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.products.lane_product import lane_product
from fpsim.schedules.libraries.cublas import GEMM_SN, GEMV, GEMV_SLICES, GEMV_SLICES_ROW, GemvRow, cublas
from fpsim.schedules.plan import plan_of
from fpsim.schedules.schedule import Lanes, Schedule
from fpsim.testing import assert_bits_equal
from tests.kit import processor
from tests.kit.sweeps import in_turn, sweep
from tests.products.checks import multiply_add

Floats = npt.NDArray[np.float32]
f32 = np.float32

UNIT = fp.unit("hopper_bf16_f32")  # which a schedule without matrix units does not look at
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1041)
SPLITS = (1, 2, 3, 32, 33, 64, 128, 130)


# ---- the orders that the kernels' authors describe, term by term; sums are (M, N) arrays


class Terms:
    """The products of one slice of K."""

    def __init__(self, a: Floats, b: Floats, start: int, stop: int) -> None:
        self.a, self.b, self.count = a[:, start:stop], b[start:stop], stop - start

    def zero(self) -> Floats:
        return np.zeros((self.a.shape[0], self.b.shape[1]), f32)

    def chains(self, places: Sequence[Iterable[int]]) -> Floats:
        """(chains, M, N): the terms at the places of each, those that there are, in their order, from +0."""
        kept = [[p for p in each if p < self.count] for each in places]
        totals = np.zeros((len(kept), self.a.shape[0], self.b.shape[1]), f32)
        for i in range(max(map(len, kept), default=0)):  # the chains do not meet, so that all take a step at once
            going = [chain for chain, terms in enumerate(kept) if i < len(terms)]
            now = [kept[chain][i] for chain in going]
            x, y = np.broadcast_arrays(self.a.T[now, :, None], self.b[now, None])
            totals[going] = multiply_add(x, y, totals[going])
        return totals


def left_to_right(parts: Sequence[Floats] | Floats) -> Floats:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def butterfly(parts: Floats, left: int = 1) -> Floats:
    half = len(parts) // 2
    while half >= left:
        parts = parts[:half] + parts[half : 2 * half]
        half //= 2
    return parts[:left]


def gemv(terms: Terms, v: int, w: int, cc: int, tree: bool) -> Floats:
    """ALGO 13: lane l owns v terms of every tile of v * w, and closes a chunk every cc tiles."""
    tiles = max(-(-terms.count // (v * w)), 1)
    chunks = []
    for first in range(0, tiles, cc or tiles):
        chunk = range(first, min(first + (cc or tiles), tiles))
        places = [[tile * v * w + lane * v + sub for tile in chunk for sub in range(v)] for lane in range(w)]
        chunks.append(terms.chains(places))
    lanes = left_to_right(chunks)
    return butterfly(lanes)[0] if tree else left_to_right(lanes)


def slices_of_lanes(terms: Terms, count: int, block: int, from_zero: bool) -> Floats:
    """ALGO 11, 16 and option 5 of 13: lane t owns contiguous terms, in blocks; from_zero: both levels start at +0."""
    share = max(-(-terms.count // count), 1)
    owned = [range(lane * share, min((lane + 1) * share, terms.count)) for lane in range(count)]
    blocks = [places[k : k + block] for places in owned for k in range(0, len(places), block)]
    chains = iter(terms.chains(blocks))
    lanes = []
    for places in owned:
        found = [next(chains) for _ in range(0, len(places), block)]
        lanes.append(left_to_right([terms.zero()] * (from_zero or not found) + found))
    return left_to_right([terms.zero()] * from_zero + lanes)


def dot(terms: Terms, blocks: int, v: int) -> Floats:
    """ALGO 14: dot_kernel and reduce_1Block_kernel."""
    tiles = -(-terms.count // (v * 128))
    sums = []
    for block in range(blocks):
        chains = [
            terms.chains([[i * v * 128 + t * v + s for i in range(block, tiles, blocks)] for t in range(128)])
            for s in range(v)
        ]
        threads = left_to_right([np.zeros_like(chains[0]), *chains])
        sums.append(butterfly(threads)[0])
    q = butterfly(np.stack([left_to_right(sums[t::128] or [terms.zero()]) for t in range(128)]), left=32)
    u = [left_to_right(q[j::4]) for j in range(4)]
    return left_to_right(u)


# ---- the schedules


class Case(NamedTuple):
    """A schedule, and what adds one slice of it: `(terms, K) -> sums`."""

    schedule: Schedule
    add: Callable[[Terms, int], Floats]

    @property
    def sums(self) -> Lanes:
        return sums_of(self.schedule)


def sums_of(schedule: Schedule) -> Lanes:
    assert isinstance(schedule.sums, Lanes)
    return schedule.sums


def by_row(row: GemvRow, split_k: int) -> Callable[[Terms, int], Floats]:
    """Return a row of ALGO 13; a negative V is spread over the terms of a slice, but not of the last one."""

    def add(terms: Terms, k: int) -> Floats:
        v = row.run if row.run > 0 else min(-row.run, ceil(ceil(k / split_k) / row.lanes))
        return gemv(terms, v, row.lanes, row.chunk, row.butterfly)

    return add


def by_blocks(blocks: int) -> Callable[[Terms, int], Floats]:
    """ALGO 14."""
    return lambda terms, _: dot(terms, blocks, 2 if terms.b.shape[1] == 1 else 1)


def by_slices(count: int, block: int, from_zero: bool) -> Callable[[Terms, int], Floats]:
    """ALGO 11 and 16, and option 5 of 13."""
    return lambda terms, _: slices_of_lanes(terms, count, block, from_zero)


def gemv_cases() -> dict[str, Case]:
    """Return the rows of ALGO 13, each once; options that share a row must have the same lanes."""
    found: dict[tuple[GemvRow, int], Case] = {}
    for arch, rows in GEMV.items():
        for (option, row), split_k in product(rows.items(), (1, 3)):
            schedule = cublas(arch, family="gemv", option=option, split_k=split_k)
            case = found.setdefault((row, split_k), Case(schedule, by_row(row, split_k)))
            assert case.sums == schedule.sums
    return {repr(case.schedule): case for case in found.values()}


MAGMA = cublas("sm_90", family="magma")
CASES = gemv_cases()
CASES |= {
    repr(case.schedule): case
    for case in (
        Case(cublas("sm_90", family="gemv", option=GEMV_SLICES), by_slices(*GEMV_SLICES_ROW, False)),
        Case(MAGMA, by_slices(1, 1 << 20, sums_of(MAGMA).lanes_from_zero)),
        *(Case(cublas("sm_90", family="gemm_sn", option=option), by_slices(*row, True))
          for option, row in GEMM_SN.items()),
        *(Case(cublas("sm_90", family="dot", split_k=blocks), by_blocks(blocks)) for blocks in SPLITS),
    )
}  # fmt: skip
every_case = in_turn("case", CASES.values())


EITHER_KERNEL = (0, 1 << 30)  # vectors of outputs, vectors of lanes


@contextmanager
def few_outputs(limit: int) -> Iterator[None]:
    """Multiply, inside the block, by the loops of few outputs where each side has fewer than `limit`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fpsim.products.lane_product._few", lambda facts: limit)
        yield


def check(case: Case, a: Floats, b: Floats) -> None:
    """Every slice of a product is what these orders say."""
    k = a.shape[1]
    plan = plan_of(case.schedule, UNIT, k)
    for part in plan.slices:
        (span,) = part.runs
        with np.errstate(all="ignore"):
            want = case.add(Terms(a, b, span.start, span.stop), k)
        for few in EITHER_KERNEL:
            with few_outputs(few):
                got = lane_product(a, b, case.sums, plan.run, span.start, span.stop)
            assert_bits_equal(got, want)


# ---- operands


def normal(rng: np.random.Generator, k: int) -> Floats:
    return rng.standard_normal(k).astype(f32)


def wide(rng: np.random.Generator, k: int) -> Floats:
    """Half of float32's exponents: products overflow, and fall below the smallest subnormal."""
    return np.ldexp(normal(rng, k), rng.integers(-76, 66, k)).astype(f32)


def cancelling(rng: np.random.Generator, k: int) -> Floats:
    """Terms that cancel others of one lane or another all but for their last bits."""
    x = np.resize(rng.standard_normal(64), k) * (1 + 2.0**-20) ** rng.integers(-2, 3, k)
    return np.asarray(x * rng.choice([-1, 1], k), f32)


def subnormal(rng: np.random.Generator, k: int) -> Floats:
    return np.ldexp(normal(rng, k), -135).astype(f32)


def vanishing(rng: np.random.Generator, k: int) -> Floats:
    """Products of two of these are rounded to zeros of one sign, which a sum keeps as long as it has no other terms."""
    return np.full(k, rng.choice([-1, 1]) * 2.0**-80, f32)


def zeros(rng: np.random.Generator, k: int) -> Floats:
    return rng.choice(np.array([0.0, -0.0, 1.0, -1.0], f32), k)


def special(rng: np.random.Generator, k: int) -> Floats:
    """Return normal terms, with an Inf or a NaN here and there."""
    x = normal(rng, k)
    places = rng.random(k) < 1 / max(k, 4)
    return np.where(places, rng.choice(np.array([np.inf, -np.inf, np.nan], f32), k), x).astype(f32)


KINDS = (normal, wide, cancelling, subnormal, vanishing, zeros, special)
SHAPES = ((1, 9), (9, 1), (1, 1), (7, 8), (1, 131), (131, 1), (129, 3), (3, 129))


def operands(m: int, k: int, n: int) -> tuple[Floats, Floats]:
    """Rows and columns of every kind, so that most pairs of kinds meet."""
    rng = np.random.default_rng([m, k, n])
    first = rng.integers(len(KINDS))
    rows = [KINDS[(first + 3 * i + i // len(KINDS)) % len(KINDS)](rng, k) for i in range(m)]
    columns = [KINDS[(i + i // len(KINDS)) % len(KINDS)](rng, k) for i in range(n)]
    return np.stack(rows), np.ascontiguousarray(np.stack(columns, 1))


# ---- claims


def test_the_oracles_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(0)
    x, y = wide(rng, 2000), wide(rng, 2000)
    with np.errstate(all="ignore"):
        z = np.where(rng.random(2000) < 0.5, -x * y, wide(rng, 2000)).astype(f32)
        result = multiply_add(x, y, z)
    for got, *terms in zip(result, x, y, z, strict=True):
        if not np.isfinite(got) or not np.isfinite(terms).all():
            continue
        p, q, r = (Fraction(float(term)) for term in terms)
        exact, near = p * q + r, Fraction(float(got))
        with np.errstate(over="ignore"):
            others = [Fraction(float(o)) for o in (np.nextafter(got, f32(side)) for side in (-np.inf, np.inf))
                      if np.isfinite(o)]  # fmt: skip
        assert all(abs(exact - near) <= abs(exact - other) for other in others)
        ties = [other for other in others if abs(exact - near) == abs(exact - other)]
        assert not ties or int(got.view(np.uint32)) % 2 == 0


@every_case
def test_every_slice_is_what_the_facts_say(case: Case) -> None:
    step = 3 if case.schedule.family != "dot" or case.schedule.slicing.count < 32 else 6
    first = list(CASES).index(repr(case.schedule)) % step  # neighbours among the cases together take every length
    for i, k in enumerate(LENGTHS[first::step]):
        m, n = SHAPES[3 * i % len(SHAPES)]
        check(case, *operands(m, k, n))


@pytest.mark.slow
@every_case
def test_so_it_is_for_more_shapes(case: Case) -> None:
    for i, k in enumerate(LENGTHS):
        for m, n in (SHAPES[i % len(SHAPES)], SHAPES[(i + 3) % len(SHAPES)]):
            check(case, *operands(m, k, n))


@every_case
@sweep("whole", False, True)
def test_any_shape_will_do(case: Case, whole: bool) -> None:
    first = list(CASES).index(repr(case.schedule)) % 2  # two neighbours together take every shape
    for m, n in SHAPES if whole else SHAPES[first::2]:
        check(case, *operands(m, 137, n))


@pytest.mark.parametrize(("m", "k", "n"), [(1, 16_700, 3), (3, 33_000, 1)])
def test_more_than_128_blocks_are_joined_in_two_rounds(m: int, k: int, n: int) -> None:
    check(CASES["cublas('sm_90', family='dot', split_k=130)"], *operands(m, k, n))


@in_turn("case", [case for case in CASES.values() if case.schedule.slicing.count == 1])
def test_both_kernels_agree_on_long_sums(case: Case) -> None:
    for k in (4096, 35_003) if case.sums.count > 1 else (4096, 270_003):  # more than 512 chunks of 512
        a, b = operands(2, k, 3)
        run, found = plan_of(case.schedule, UNIT, k).run, []
        for few in EITHER_KERNEL:
            with few_outputs(few):
                found.append(lane_product(a, b, case.sums, run, 0, k))
        assert_bits_equal(*found)


@pytest.mark.parametrize("option", ["gemm_sn 1", "gemv 5", "gemv 36", "dot 3"])
@pytest.mark.parametrize(("m", "n"), [(1, 129), (129, 1), (2, 300), (300, 2), (300, 300), (1, 1), (3, 2)])
def test_parts_and_layouts_of_codes_make_no_difference(
    option: str, m: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, number = option.split()
    schedule = cublas("sm_90", family="dot", split_k=3) if family == "dot" else cublas(
        "sm_90", family=family, option=int(number))  # fmt: skip
    a, b = (fp.encode(x, "f16") for x in operands(m, 77, n))
    run, formats = plan_of(schedule, UNIT, 77).run, (fp.FP16, fp.FP16)
    want = lane_product(fp.decode(a, "f16"), fp.decode(b, "f16"), sums_of(schedule), run, 3, 77)
    monkeypatch.setattr("fpsim.products.lane_product.PART", 1)
    monkeypatch.setattr("fpsim.runtime.threads.SMALLEST", 1)
    monkeypatch.setenv("FPSIM_NUM_THREADS", "3")
    for few in EITHER_KERNEL:
        for first, second in product((a, np.asfortranarray(a)), (b, np.asfortranarray(b))):
            with few_outputs(few):
                got = lane_product(first, second, sums_of(schedule), run, 3, 77, formats)
            assert_bits_equal(got, want)


@every_case
def test_no_terms_are_plus_zero(case: Case) -> None:
    a, b = operands(3, 8, 4)
    run = plan_of(case.schedule, UNIT, 8).run
    assert_bits_equal(lane_product(a, b, case.sums, run, 5, 5), np.zeros((3, 4), f32))


def test_minus_zero_is_what_vanishing_products_leave_where_every_chunk_of_every_lane_has_one() -> None:
    lanes = Lanes(16, 1, 32)
    for (k, sign), (m, n) in product([(15, 0), (16, 1), (511, 1), (512, 1), (513, 0), (528, 1)], [(1, 3), (200, 1)]):
        a, b = np.full((m, k), -(2.0**-80), f32), np.full((k, n), 2.0**-80, f32)
        for few in EITHER_KERNEL:
            with few_outputs(few):
                assert_bits_equal(lane_product(a, b, lanes, 1, 0, k), np.full((m, n), [0.0, -0.0][sign], f32))


@pytest.mark.parametrize("lanes", [Lanes(2, 0, 4, chunks_from_zero=True), Lanes(2, 0, 4, lanes_from_zero=True)])
def test_minus_zero_becomes_plus_zero_where_totals_start_there(lanes: Lanes) -> None:
    a, b = np.full((2, 9), -(2.0**-80), f32), np.full((9, 2), 2.0**-80, f32)
    for few in EITHER_KERNEL:
        with few_outputs(few):
            assert_bits_equal(lane_product(a, b, Lanes(2, 0, 4), 5, 0, 9), np.full((2, 2), -0.0, f32))
            assert_bits_equal(lane_product(a, b, lanes, 5, 0, 9), np.zeros((2, 2), f32))


@pytest.mark.parametrize("threads", ["2", "3"])
@pytest.mark.parametrize(("m", "n"), [(5, 600), (600, 5), (300, 1), (1, 300), (300, 300)])
@pytest.mark.parametrize("option", [5, 10, 36])
def test_results_do_not_depend_on_the_number_of_threads(
    option: int, m: int, n: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(m, 77, n)
    schedule = cublas("sm_90", family="gemv", option=option)
    sums, run = sums_of(schedule), plan_of(schedule, UNIT, 77).run
    monkeypatch.setenv("FPSIM_NUM_THREADS", "1")
    want = lane_product(a, b, sums, run, 2, 77)
    monkeypatch.setattr("fpsim.runtime.threads.SMALLEST", 1)
    monkeypatch.setenv("FPSIM_NUM_THREADS", threads)
    assert_bits_equal(lane_product(a, b, sums, run, 2, 77), want)


@pytest.mark.skipif(not processor.IS_SUPPORTED, reason="the processor's state is set through glibc on x86")
@pytest.mark.parametrize("state", processor.STATES)
def test_results_do_not_depend_on_the_processors_state(state: str) -> None:
    a, b = operands(7, 65, 8)
    case = CASES["cublas('sm_90', family='gemv', option=11)"]
    want = lane_product(a, b, case.sums, 1, 0, 65)
    with processor.processor_state(processor.STATES[state]):
        got = lane_product(a, b, case.sums, 1, 0, 65)
    assert_bits_equal(got, want)
