"""Random numbers of a run, of batches and of weights: functions of the seed by NumPy's Philox, the same everywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fpsim.errors import require_integer, shown

Integers = npt.NDArray[np.int64]
WORD = 1 << 64  # seeds, steps and micro-batches are words of the generator
BATCHES, PERMUTATION, TEACHER, INPUTS, WEIGHTS = range(5)  # streams of random words


def indices(seed: int, step: int, micro: int, count: int, below: int) -> Integers:
    """Return random integers in 0 .. below - 1 that depend only on the arguments.

    Integer i is (w // 2**32) * below // 2**32, where w is 64-bit number i of NumPy's generator Philox(key=[seed, 0],
    counter=[0, 0, micro, step]). NumPy promises that these numbers never change, which it does not of its
    distributions. Each integer has a probability of 1 / below, to one part in 2**32 / below.

    Args:
      seed, step, micro: integers in 0 .. 2**64 - 1.
      count: the number of integers.
      below: the end of their range, in 1 .. 2**31.

    Example:
      >>> from fpsim.train.draws import indices
      >>> indices(0, 7, 0, 4, 1000)
      array([782, 755,  49, 270])
    """
    generator = random_words(seed, BATCHES, step, micro)
    require_integer("batch", count, 1)
    if below > 1 << 31:
        raise ValueError(f"a text may have at most 2**31 places to begin at; got {below}. Take a part of it.")
    words = generator.random_raw(int(count)) >> np.uint64(32)
    return (words * np.uint64(below) >> np.uint64(32)).astype(np.int64)


def normal_numbers(seed: int, number: int, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return nearly normal numbers of mean 0 and deviation 1 that depend only on the arguments.

    A number is the sum of 12 random integers of 32 bits, less 6 * 2**32, times 2**-32 (exact): a distribution from -6
    to 6. The integers are the halves, low and high, of six 64-bit numbers of NumPy's Philox, as in `indices`.

    Args:
      seed: an integer in 0 .. 2**64 - 1.
      number: the number of the array that is drawn from the seed.
      shape: the shape of the result, float64.

    Example:
      >>> from fpsim.train.draws import normal_numbers
      >>> numbers = normal_numbers(0, 0, (10000,))
      >>> round(float(numbers.mean()), 2), round(float(numbers.std()), 2)
      (-0.01, 1.0)
    """
    count = int(np.prod(shape))
    words = random_words(seed, WEIGHTS, number, 0).random_raw(6 * count).reshape(count, 6)
    low, high = words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)
    total = (low.sum(1) + high.sum(1)).astype(np.int64) - 6 * 2**32
    numbers: npt.NDArray[np.float64] = (total * 2.0**-32).reshape(shape)
    return numbers


def random_words(seed: int, stream: int, step: int, micro: int) -> np.random.Philox:
    """Return NumPy's generator of random numbers for a seed, a stream, a step and a micro-batch."""
    for name, value in (("seed", seed), ("step", step), ("micro", micro)):
        require_integer(name, value, 0)
        if value >= WORD:
            raise ValueError(f"{name} must be an integer in 0 .. 2**64 - 1; got {shown(value)}.")
    key, counter = np.array([seed, stream], np.uint64), np.array([0, 0, micro, step], np.uint64)
    return np.random.Philox(key=key, counter=counter)
