"""The average of gradients over micro-batches and processes: the format in which they are sent, and the order.

torch's DistributedDataParallel calls a hook with each bucket of gradients, which rounds every rank's gradient to a
format (or none), sends it to all other ranks, adds all in the order of the ranks by an accumulator, and divides the sum
by their number, in float32. So all ranks get the same bits, whatever the buckets, and `reduce` computes them in one
process.

Two processes compute equal gradients from equal batches only if torch's kernels do, whose sums may depend on the number
of threads: torchrun sets one thread, as `torch.set_num_threads(1)` does.

Source: docs/accumulators.md for sums; https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html for hooks.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpsim.arithmetic.functions import add
from fpsim.arrays import Array, words
from fpsim.casts.cast import decode, encode, refuse_unless_held
from fpsim.errors import require_integer, require_kind, shown
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding
from fpsim.products.reduce import sum as sum_of
from fpsim.sums.accumulators import Accumulator, Sequential
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets
BUCKET = 25.0  # MiB, as in torch


class Reduction:
    """The average of gradients over processes or micro-batches: format in which they are sent, accumulator, divisor.

    Args:
      fmt: the format that gradients are rounded to before they are added, by name, dtype or object; None for float32.
      accumulate: the accumulator that adds them; None for `fp.Sequential(fp.FP32)`. A wider sum is rounded to float32.
      count: the divisor of the sum; None for the number of gradients that are added.
    Raises:
      TypeError, ValueError: fmt is no format with a sign and a zero, accumulate is no accumulator or rounds
        stochastically, or count is < 1.
    """

    def __init__(self, fmt: Any = None, accumulate: Accumulator | None = None, count: int | None = None) -> None:
        self.fmt: Format | None = None if fmt is None else find_format(fmt)
        if self.fmt is not None and not (self.fmt.signed and self.fmt.has_zero):
            raise ValueError(f"fmt must be a format with a sign and a zero; got {self.fmt}. Use BF16, for example.")
        if self.fmt is not None:
            refuse_unless_held(self.fmt, FP32, "take one of up to 32 bits")
        self.accumulate = Sequential(FP32) if accumulate is None else accumulate
        self.count = count
        require_kind("accumulate", self.accumulate, Accumulator, "an accumulator such as fp.Sequential(fp.FP32)")
        if self.accumulate.rounding is Rounding.STOCHASTIC:
            raise ValueError(
                "accumulate must round by values alone, since a random number would depend on the bucket that torch "
                f"puts a gradient in; got {shown(self.accumulate)}. Use nearest_even."
            )
        if count is not None:
            require_integer("count", count, 1)

    def sent(self, gradient: Tensor) -> Array:
        """Return the array that a rank sends for a float32 gradient: codes of `fmt`, or float32 if that is None."""
        if gradient.dtype != torch.float32:
            raise TypeError(f"gradients must be float32; got {gradient.dtype}. Keep the parameters in float32.")
        values = array_of(gradient)
        return values if self.fmt is None else encode(values, self.fmt)

    def average(self, sent: Sequence[Array]) -> Tensor:
        """Return the float32 mean of arrays from ranks: their sum in the given order, divided by `count`.

        sent: an array from each rank, as the method `sent` returns it. If `count` is None, the divisor is their number.
        """
        terms = np.stack(sent)  # (ranks, ...)
        values = terms if self.fmt is None else decode(terms, self.fmt)
        total = np.asarray(sum_of(values, accumulate=self.accumulate, axis=0))
        if total.dtype != np.float32:
            wide = decode(words(total), self.accumulate.result_format, np.float64)
            with np.errstate(over="ignore"):
                total = np.asarray(wide, np.float32)
        return tensor_of(np.asarray(total / np.float32(self.count or len(sent))))


def reduce(
    gradients: Sequence[Mapping[str, Tensor]], fmt: Any = None, accumulate: Accumulator | None = None,
    count: int | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the mean of several ranks' gradients, computed in this process with the bits that the ranks would compute.

    gradients: for each rank (or micro-batch), name -> float32 tensor on the CPU, with equal names and shapes, else a
    TypeError or ValueError is raised. fmt: the format in which ranks send gradients; None for float32. accumulate: the
    accumulator that adds them; None for `fp.Sequential(fp.FP32)`. count: the divisor; None for the length of
    `gradients`.

    Example:
      >>> import torch
      >>> from fpsim.train.ranks import reduce
      >>> reduce([{"w": torch.tensor([1.0])}, {"w": torch.tensor([1.001])}], fmt=fp.BF16)
      {'w': tensor([1.])}
    """
    reduction = Reduction(fmt, accumulate, count)
    if not gradients:
        raise ValueError("there must be gradients to reduce; got none.")
    shapes = [{name: tuple(x.shape) for name, x in part.items()} for part in gradients]
    for i, here in enumerate(shapes):
        if here != shapes[0]:
            name = next(name for name in {**shapes[0], **here} if here.get(name) != shapes[0].get(name))
            raise ValueError(
                f"gradients must have the same names and shapes; got {name!r} of {shown(here.get(name))} in number "
                f"{i} and of {shown(shapes[0].get(name))} in number 0."
            )
    return {name: reduction.average([reduction.sent(part[name]) for part in gradients]) for name in gradients[0]}


# ---- processes


class LostRankError(ConnectionError):
    """Raised in a rank that exchanges data with another rank which has ended or cannot be reached.

    Args:
      rank: the number of the lost rank.
      world: the number of ranks.

    Example:
      >>> from fpsim.train.ranks import LostRankError
      >>> str(LostRankError(1, 2)).partition(".")[0]
      "rank 1 of 2 has ended, or can't be reached, in the middle of a step"
    """

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(
            f"rank {rank} of {world} has ended, or can't be reached, in the middle of a step. The checkpoint "
            "saved before it is complete: start all ranks again with the same call, which resumes from it."
        )
        self.rank, self.world = rank, world


@dataclass(frozen=True)
class Ranks:
    """The group of processes that train together, seen from one of them.

    Attributes:
      rank: the number of this process, 0 .. world - 1. Rank 0 writes files.
      world: the number of processes.

    Example:
      >>> from fpsim.train.ranks import Ranks
      >>> with Ranks.from_environment() as ranks:
      ...     print(ranks)
      Ranks(rank=0, world=1)
    """

    rank: int
    world: int

    @classmethod
    def single(cls) -> Ranks:
        """Return a group that consists of this process alone."""
        return cls(0, 1)

    @classmethod
    def from_environment(cls) -> Ranks:
        """Connect the processes that torchrun started, by gloo on CPUs; without torchrun, return this process alone.

        Use it in a `with` statement, which closes the connection even after an error. A process that waits for one that
        failed then fails too, and torchrun ends it.

        Raises:
          ValueError: some of torchrun's variables are set, and some are not.
          RuntimeError: this torch cannot connect processes.
        """
        missing = [name for name in ENVIRONMENT if name not in os.environ]
        if len(missing) == len(ENVIRONMENT):
            return cls.single()
        if missing:
            raise ValueError(
                f"{', '.join(ENVIRONMENT)} must be set, as torchrun does, or none of them; {missing[0]} is not. Start "
                "with torchrun --nproc-per-node 2, or unset them."
            )
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            raise RuntimeError("several processes need a torch with gloo, which this one is built without.")
        # After a restart torchrun's store still has the entries of the earlier processes, for which gloo would wait.
        distributed: Any = torch.distributed  # which doesn't export these names to type checkers
        store, rank, world = next(iter(distributed.rendezvous("env://")))
        attempt = distributed.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        distributed.init_process_group("gloo", store=attempt, rank=rank, world_size=world)
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the other processes."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def data_parallel(
        self, model: torch.nn.Module, fmt: Any = None, accumulate: Accumulator | None = None, *,
        count: int | None = None, bucket: float = BUCKET,
    ) -> torch.nn.Module:  # fmt: skip
        """Wrap a model so that after each backward pass its gradients are the mean over all ranks.

        All ranks begin with the parameters of rank 0. Buffers are not synchronised; `all_reduce_max` can do it. To add
        micro-batches, run all but the last under the result's `no_sync()`: torch adds their gradients in float32. Then
        pass count = ranks * micro-batches.

        Args:
          model: a model whose parameters are float32 tensors on the CPU.
          fmt, accumulate: the format that is sent, and the accumulator, as for `Reduction`.
          count: the divisor of the sum; None for the number of ranks.
          bucket: MiB of gradients that are sent together; it changes no bit.
        Returns:
          A `torch.nn.parallel.DistributedDataParallel`; for one process the model itself (use `reduce` for
          micro-batches).
        """
        reduction = Reduction(fmt, accumulate, count)
        if self.world == 1:
            return model
        wrapper = torch.nn.parallel.DistributedDataParallel
        names = inspect.signature(wrapper).parameters
        word = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # its older name
        syncs: dict[str, Any] = {word: False}
        shared = wrapper(model, bucket_cap_mb=bucket, **syncs)
        # torch refuses annotations that are strings, as in this file; a lambda has none
        shared.register_comm_hook(reduction, lambda state, bucket: self._averaged(state, bucket))
        return shared

    def _averaged(self, reduction: Reduction, bucket: Any) -> Any:
        """Exchange a bucket of gradients (torch's GradBucket) with all ranks; return a finished future of the mean.

        reduction: the format in which the gradients are sent, the accumulator that adds them, and the divisor.
        """
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(reduction.average(self.gathered(reduction.sent(bucket.buffer()))))
        return done

    def averaged(self, gradients: Mapping[str, Tensor], reduction: Reduction) -> dict[str, Tensor]:
        """Return the mean of all ranks' gradients, name -> new tensor, as `data_parallel` computes it.

        Args:
          gradients: name -> float32 tensor on the CPU, of the same names and shapes on all ranks.
          reduction: the format in which they are sent, the accumulator that adds them, and the divisor of the sum.
        """
        return {name: reduction.average(self.gathered(reduction.sent(x))) for name, x in gradients.items()}

    def all_reduce_max(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the elementwise maximum of arrays, such as amax, over all ranks; NaN if it is NaN on any rank.

        Args:
          arrays: name -> array, of the same names, shapes and dtypes on all ranks.
        Returns:
          Name -> new array.

        Example:
          >>> from fpsim.train.ranks import Ranks
          >>> Ranks.single().all_reduce_max({"amax": np.float32([1, 2])})
          {'amax': array([1., 2.], dtype=float32)}
        """
        return {name: np.maximum.reduce(np.stack(self.gathered(x))) for name, x in sorted(arrays.items())}

    def mean(self, values: Sequence[float]) -> float:
        """Return the mean of numbers over all ranks: their exact sum rounded to float64, divided by their number.

        All ranks must pass equally many numbers.

        Example:
          >>> from fpsim.train.ranks import Ranks
          >>> Ranks.single().mean([1.0, 2.0])
          1.5
        """
        of_ranks = self.gathered(np.array(values))
        return math.fsum(float(value) for of_rank in of_ranks for value in of_rank) / (len(values) * self.world)

    def gathered(self, array: Array) -> list[Array]:
        """Return the array that each rank passed, in the order of the ranks; shapes and dtypes must be equal."""
        mine = np.asarray(array, order="C")
        if self.world == 1 or not mine.size:
            return [mine] * self.world
        # Each rank sends to each other one. gloo's collectives can deadlock: its thread needs Python's lock to free
        # tensors, while this thread holds the lock and ends the connection (torch 2.13).
        sent = torch.from_numpy(mine.reshape(-1).view(np.uint8).copy())
        received = [sent if rank == self.rank else torch.empty_like(sent) for rank in range(self.world)]
        works: list[tuple[int, Any]] = []  # (other rank, torch's work object)
        rank = self.rank
        try:
            for rank in range(self.world):
                if rank != self.rank:
                    works.append((rank, torch.distributed.isend(sent, rank)))
                    works.append((rank, torch.distributed.irecv(received[rank], rank)))
            for rank, work in works:  # noqa: B007 # the except clause reads `rank`
                work.wait()
        except RuntimeError as reason:  # torch's error for a lost connection
            raise LostRankError(rank, self.world) from reason
        return [tensor.numpy().view(mine.dtype).reshape(mine.shape) for tensor in received]


# ---- micro-batches


class StepGradients:
    """The gradients of one training step, collected from all micro-batches of all processes.

    Each process adds its micro-batches in `fmt`, or in float32; then the sums are averaged over the processes. One
    process alone without `fmt` averages its micro-batches as if each came from another process.

    Args:
      fmt: the format in which a process stores its sum, `Recipe.gradients`; None for float32.
      reduction: the format, accumulator and divisor of the mean.
      ranks: the processes that train together.
    """

    def __init__(self, fmt: Any, reduction: Reduction, ranks: Ranks) -> None:
        self._sum = None if fmt is None else GradientSum(fmt)
        self._reduction, self._ranks = reduction, ranks
        self._parts: list[dict[str, Tensor]] = []

    def add(self, gradients: dict[str, Tensor]) -> None:
        """Add the gradients of a micro-batch, name -> float32 tensor; later calls may change these tensors in place."""
        if self._sum is not None:
            self._sum.add(gradients)
        elif self._ranks.world == 1 or not self._parts:
            self._parts.append(gradients)
        else:
            for name, gradient in gradients.items():
                self._parts[0][name].add_(gradient)

    def reduce(self) -> dict[str, Tensor]:
        """Return name -> mean of the gradients of all micro-batches over all processes, float32."""
        if self._sum is not None:
            return self._ranks.averaged(self._sum.gradients, self._reduction)
        if self._ranks.world > 1:
            return self._ranks.averaged(self._parts[0], self._reduction)
        if len(self._parts) == 1 and self._reduction.fmt is None:
            return self._parts[0]
        return reduce(self._parts, self._reduction.fmt, self._reduction.accumulate, self._reduction.count)


class GradientSum:
    """A running sum of micro-batches' gradients that is stored in a format, as frameworks store `.grad`.

    Each gradient is rounded into the format, to nearest even, and so is each sum. There is no float32 sum: a gradient
    smaller than half an ulp of the sum is lost.

    Args:
      fmt: the format, by name, dtype or object; float32 must represent its values.
    Raises:
      TypeError, ValueError: fmt is not such a format.

    Attributes:
      gradients: name -> sum so far, a float32 tensor with values of the format.

    Example:
      >>> import torch
      >>> from fpsim.train.ranks import GradientSum
      >>> total = GradientSum("bf16")
      >>> for value in (256.0, 1.0, 1.0):
      ...     total.add({"w": torch.tensor([value])})
      >>> total.gradients
      {'w': tensor([256.])}
    """

    def __init__(self, fmt: Any) -> None:
        self.fmt = find_format(fmt)
        refuse_unless_held(self.fmt, FP32, "take one of up to 32 bits")
        self.gradients: dict[str, Tensor] = {}

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """Add the gradients of a micro-batch, a mapping of names to float32 tensors."""
        for name, gradient in gradients.items():
            codes = encode(array_of(gradient), self.fmt)
            if name in self.gradients:
                codes = np.asarray(add(encode(array_of(self.gradients[name]), self.fmt), codes, fmt=self.fmt))
            self.gradients[name] = tensor_of(decode(codes, self.fmt))
