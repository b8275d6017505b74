"""`with fp.rounding(...)`: which arrays it reaches, where it ends, and which seeds it spends."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.formats.rounding import NAMES, Rounding
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

MODES = [name for name in NAMES if name != "stochastic"]
FMT = fp.E4M3
A = fp.array(np.linspace(-3, 5, 50), FMT)
B = fp.array(np.linspace(0.3, 200, 50), FMT)
THIRD = fp.array(1, FMT)  # / 3 tells the modes apart


def third() -> float:
    return float(THIRD / 3)


DOWN, UP = 0.3125, 0.34375  # 1 / 3 lies between


@pytest.mark.parametrize("mode", MODES)
def test_every_operation_takes_the_mode(mode: str) -> None:
    a, b, c = A.codes, B.codes, B.codes[::-1]
    with fp.rounding(mode):
        got = [A + B, A - B, A * B, A / B, A.fma(B, B[::-1]), B.sqrt(), B.round(), A.remainder(B), A.astype("e2m1")]
        values = fp.array([0.3, -0.3, 1e6, -1e6], FMT)
        integers = fp.array([1001, -17], FMT)
    functions: list[Callable[..., Any]] = [fp.add, fp.subtract, fp.multiply, fp.divide]
    want = [function(a, b, fmt=FMT, rounding=mode) for function in functions]
    want += [fp.fma(a, b, c, fmt=FMT, rounding=mode)]
    want += [function(b, fmt=FMT, rounding=mode) for function in (fp.sqrt, fp.round_to_integral)]
    want += [fp.remainder(a, b, fmt=FMT, rounding=mode), fp.convert(a, "e2m1", fmt=FMT, rounding=mode)]
    for one, other in zip(got, want, strict=True):
        assert_bits_equal(one.codes, other)
    assert_bits_equal(values.codes, fp.encode(np.array([0.3, -0.3, 1e6, -1e6], np.float64), FMT, rounding=mode))
    assert_bits_equal(integers.codes, fp.encode(np.array([1001, -17], np.float64), FMT, rounding=mode))


def test_values_beside_an_array_are_rounded_in_the_mode() -> None:
    with fp.rounding("up"):
        assert float(THIRD * 0.29) == 0.3125
    with fp.rounding("down"):
        assert float(0.3 * THIRD) == 0.28125  # both lie between 0.28125 and 0.3125


def test_products_and_sums_of_matrices_take_the_mode() -> None:
    a, b = fp.array([[1.0, 0.3], [2.5, -7]], FMT), fp.array([3.25, 0.7], FMT)
    with fp.rounding("toward_zero"):
        assert_bits_equal((a @ b).codes, (a[:, 0] * b[0] + a[:, 1] * b[1]).codes)
        assert_bits_equal((a**3).codes, (a * a * a).codes)


@pytest.mark.parametrize("word", ["RTZ", "cudaRoundZero", Rounding.TOWARD_ZERO])
def test_a_mode_has_all_its_spellings(word: str | Rounding) -> None:
    with fp.rounding(word):
        assert third() == DOWN


def test_functions_are_not_affected() -> None:
    with fp.rounding("up"):
        assert_bits_equal(
            fp.divide(np.array([0x38], np.uint8), np.array([0x44], np.uint8), fmt=FMT), np.array([0x2B], np.uint8)
        )
        assert fp.quantize(np.float32(1.01), FMT) == 1.0
        assert np.float32(1) / np.float32(3) == np.float32(0.33333334)


# ---- where it ends


def test_blocks_nest_and_end() -> None:
    nearest = third()
    with fp.rounding("down"):
        assert third() == DOWN
        with fp.rounding("up"):
            assert third() == UP
            with fp.rounding("toward_zero"):
                assert third() == DOWN
            assert third() == UP
        assert third() == DOWN
    assert third() == nearest


def test_an_exception_ends_a_block_and_passes() -> None:
    with fp.rounding("down"):
        with pytest.raises(KeyError, match=str(UP)), fp.rounding("up"):
            raise KeyError(third())
        assert third() == DOWN


def test_one_object_serves_many_blocks_and_within_itself() -> None:
    up = fp.rounding("up")
    nearest = third()
    for _ in range(2):
        with up:
            with fp.rounding("down"), up:
                assert third() == UP
            with up:
                pass
            assert third() == UP
        assert third() == nearest


def test_the_mode_holds_when_a_block_begins_not_when_it_is_made() -> None:
    nearest = third()
    fp.rounding("up")
    assert third() == nearest


def test_a_generator_that_ends_blocks_out_of_order_is_told() -> None:
    def rounding_up() -> Iterator[None]:
        with fp.rounding("up"):
            yield

    nearest = third()
    generator = rounding_up()
    next(generator)
    with fp.rounding("down"):
        with pytest.raises(RuntimeError, match="must end in the reverse order of their beginnings"):
            next(generator, None)
        assert third() == DOWN
    assert third() == nearest  # the block has ended all the same
    with pytest.raises(RuntimeError, match="must end in the reverse order"):
        fp.rounding("up").__exit__(None, None, None)


# ---- threads and tasks


def test_a_thread_begins_at_nearest_even_and_keeps_its_mode_to_itself() -> None:
    found: dict[str, float] = {}
    begun, checked = threading.Event(), threading.Event()
    nearest = third()

    def work() -> None:
        found["start"] = third()
        with fp.rounding("up"):
            begun.set()
            checked.wait(10)
            found["block"] = third()

    with fp.rounding("down"):
        # an empty context, which threads begin with unless the interpreter is told to copy
        thread = threading.Thread(target=contextvars.Context().run, args=(work,))
        thread.start()
        assert begun.wait(10)
        assert third() == DOWN
        checked.set()
        thread.join()
    assert found == {"start": nearest, "block": UP}


def test_threads_round_in_their_own_modes_at_once() -> None:
    want = {}
    for mode in MODES:
        with fp.rounding(mode):
            want[mode] = (A / B).codes.copy()
    found = {}
    barrier = threading.Barrier(len(MODES))

    def work(mode: str) -> None:
        with fp.rounding(mode):
            barrier.wait(10)
            found[mode] = [(A / B).codes.copy() for _ in range(50)]

    threads = [threading.Thread(target=work, args=(mode,)) for mode in MODES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == set(MODES)
    for mode in MODES:
        for codes in found[mode]:
            assert_bits_equal(codes, want[mode])


def test_one_object_serves_several_threads() -> None:
    shared = fp.rounding("stochastic", seed=5)
    with shared:
        want = [(A / B).codes.copy() for _ in range(20)]
    found = []

    def work() -> None:
        with shared:
            found.append([(A / B).codes.copy() for _ in range(20)])

    threads = [threading.Thread(target=contextvars.Context().run, args=(work,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert_bits_equal(np.array(found), np.array([want] * 4))


def test_tasks_that_take_turns_keep_their_modes() -> None:
    async def work(mode: str) -> list[float]:
        results = []
        with fp.rounding(mode):
            for _ in range(5):
                results.append(third())
                await asyncio.sleep(0)
        return results

    async def both() -> list[list[float]]:
        return list(await asyncio.gather(work("up"), work("down")))

    nearest = third()
    assert asyncio.run(both()) == [[UP] * 5, [DOWN] * 5]
    assert third() == nearest


def test_a_task_inherits_the_mode_and_count_of_the_block_that_starts_it() -> None:
    def draw() -> bytes:
        return bytes((A / B).codes)

    async def several() -> list[bytes]:
        results = []
        for _ in range(3):
            results.append(draw())
            await asyncio.sleep(0)
        return results

    async def main() -> tuple[list[bytes], ...]:
        with fp.rounding("stochastic", seed=9):
            first = [draw()]
            a, b = await asyncio.gather(several(), several())
            return first, a, b, await several()

    first, a, b, after = asyncio.run(main())
    with fp.rounding("stochastic", seed=9):
        want = [draw() for _ in range(4)]
    assert first == want[:1]
    assert a == b == after == want[1:]


# ---- the seeds of a stochastic block


def seeded(seed: int, bits: int = 32) -> Any:
    return fp.divide(A.codes, B.codes, fmt=FMT, rounding="stochastic", seed=seed, random_bits=bits)


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 2])
@pytest.mark.parametrize("bits", [32, 2])
def test_the_nth_operation_takes_the_nth_seed(seed: int, bits: int) -> None:
    with fp.rounding("stochastic", seed=seed, random_bits=bits):
        got = [(A / B).codes for _ in range(5)]
    for n, codes in enumerate(got):
        assert_bits_equal(codes, seeded((seed + n) % 2**64, bits))
    assert len({codes.tobytes() for codes in got}) == 5


COUNTS: dict[str, tuple[Callable[[], Any], int]] = {
    "an operation": (lambda: A + B, 1),
    "a root": (lambda: B.sqrt(), 1),
    "a fused multiply-add": (lambda: A.fma(B, B), 1),
    "an operation with a number": (lambda: A + 0.1, 2),
    "a fused multiply-add with numbers": (lambda: A.fma(0.1, 2), 3),
    "making an array": (lambda: fp.array([0.1, 0.2], FMT), 1),
    "making an array of integers": (lambda: fp.array([1, 2], FMT), 1),
    "a conversion": (lambda: A.astype(fp.E5M2), 1),
    "a conversion to the same format": (lambda: A.astype(FMT), 0),
    "an assignment": (lambda: A.copy().__setitem__(0, 0.1), 1),
    "a power": (lambda: A**4, 3),
    "a first power": (lambda: A**1, 0),
    "a negative power": (lambda: A**-3, 4),
    "a dot product of 50": (lambda: A @ B, 99),
    "signs": (lambda: (-A, abs(A), +A), 0),
    "comparisons": (lambda: (A < B, A == 0.1, A >= 3), 0),
    "elements and shapes": (lambda: (A[3], A[:5].reshape(5, 1).T, A.copy(), A.values, repr(A)), 0),
}


@in_turn("use, count", COUNTS.values())
def test_everything_that_rounds_counts(use: Callable[[], Any], count: int) -> None:
    with fp.rounding("stochastic", seed=100):
        use()
        assert_bits_equal((A / B).codes, seeded(100 + count))


def test_a_number_is_rounded_before_the_operation() -> None:
    with fp.rounding("stochastic", seed=3):
        got = 0.1 * A
    number = fp.encode(np.float64(0.1), FMT, rounding="stochastic", seed=3)
    want = fp.multiply(number, A.codes, fmt=FMT, rounding="stochastic", seed=4)
    assert_bits_equal(got.codes, want)


def test_a_matrix_product_draws_for_products_and_sums_in_turn() -> None:
    a, b = fp.array([1.1, 2.3, 0.7], FMT), fp.array([0.9, 1.7, 3.3], FMT)
    with fp.rounding("stochastic", seed=3):
        got = a @ b
    keywords: dict[str, Any] = {"fmt": FMT, "rounding": "stochastic"}
    total = fp.multiply(a.codes[0], b.codes[0], seed=3, **keywords)
    total = fp.add(total, fp.multiply(a.codes[1], b.codes[1], seed=4, **keywords), seed=5, **keywords)
    total = fp.add(total, fp.multiply(a.codes[2], b.codes[2], seed=6, **keywords), seed=7, **keywords)
    assert_bits_equal(got.codes, np.asarray(total))


def test_each_block_counts_from_its_seed_and_an_inner_one_does_not_disturb_the_outer() -> None:
    block = fp.rounding("stochastic", seed=20)
    for _ in range(2):
        with block:
            assert_bits_equal((A / B).codes, seeded(20))
            with fp.rounding("stochastic", seed=70):
                assert_bits_equal((A / B).codes, seeded(70))
                assert_bits_equal((A / B).codes, seeded(71))
            with block:
                assert_bits_equal((A / B).codes, seeded(20))
            with fp.rounding("up"):
                A / B
            assert_bits_equal((A / B).codes, seeded(21))


# ---- bad input


def test_bad_input_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"rounding must be one of nearest_even.*got 'nearest'. Did you mean 'nearest"):
        fp.rounding("nearest")
    with pytest.raises(ValueError, match=r"rounding must be one of .*got None"):
        fp.rounding(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"stochastic rounding needs a seed.*Pass seed=0\."):
        fp.rounding("stochastic")
    with pytest.raises(ValueError, match=r"seed must be an integer in 0 \.\. 2\*\*64 - 1; got -1\."):
        fp.rounding("stochastic", seed=-1)
    with pytest.raises(ValueError, match=r"random_bits must be an integer in 1 \.\. 32; got 33\."):
        fp.rounding("stochastic", seed=0, random_bits=33)
    with pytest.raises(TypeError):
        fp.rounding("up", 3)  # type: ignore[call-arg]


def test_the_module_of_modes_is_still_importable_by_name() -> None:
    from fpsim.formats.rounding import rounding_mode

    assert rounding_mode("up") is Rounding.UP
    assert isinstance(fp.rounding("up"), fp.rounding)
