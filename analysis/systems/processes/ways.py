"""The script that torchrun starts in every process: a training step by DDP, ZeRO and FSDP2, compared with one process.

`torchrun --nproc-per-node 4 -m fpsim.analysis.systems.processes.ways` prints the report; `--out FILE` writes it as
JSON. `--backend nccl` needs a GPU for every process, `--backend gloo` runs on the CPU; the default is nccl if every
process has a GPU, otherwise gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fpsim.analysis.systems.processes.backends import BACKENDS, chosen_backend
from fpsim.analysis.systems.processes.orders import IN_ORDER, explained, orders_of
from fpsim.analysis.systems.processes.report import ProcessesReport, ProcessRow, row_of
from fpsim.arrays import Array
from fpsim.errors import unknown
from fpsim.files import write_whole
from fpsim.formats.named import BF16, FP32

Tensors = dict[str, torch.Tensor]
WIDTH, HIDDEN, ROWS = 32, 96, 24  # sizes of the model, and rows of a micro-batch
LEARNING_RATE = 1e-2


def small_model(device: str) -> torch.nn.Module:
    """Return a small perceptron, with the same initial weights in every call; reseeds torch's generator.

    device: torch's name of the device, such as "cpu" or "cuda:0".
    """
    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH)
    return torch.nn.Sequential(*layers).to(device)


def loss_of(model: torch.nn.Module, rank: int, device: str) -> torch.Tensor:
    """Return the mean square of the model's outputs for a rank's random micro-batch, on torch's device `device`."""
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1000 + rank)).to(device)
    loss: torch.Tensor = model(rows).square().mean()
    return loss


def gradients_of(model: torch.nn.Module) -> Tensors:
    """Return parameter name -> copy of its gradient in `model`; sharded gradients are gathered into whole tensors."""
    return {name: _whole(parameter.grad) for name, parameter in model.named_parameters()}


def weights_of(model: torch.nn.Module) -> Tensors:
    """Return parameter name -> copy of its values; sharded parameters are gathered into whole tensors."""
    return {name: _whole(parameter) for name, parameter in model.named_parameters()}


def _whole(x: Any) -> torch.Tensor:
    """Return a copy of a tensor without its gradient; a sharded tensor is gathered."""
    tensor: torch.Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return tensor.detach().clone()


def _step(
    model: torch.nn.Module, shared: torch.nn.Module, optimizer: torch.optim.Optimizer, device: str, rank: int
) -> tuple[Tensors, Tensors]:  # fmt: skip
    """Take a training step on the micro-batch of a rank, and return the model's (gradients, weights), each by name.

    shared: the model itself, or a wrapper of it, such as DistributedDataParallel, that adds gradients over ranks.
    optimizer: the optimizer of its parameters. device: torch's name of the device.
    """
    loss_of(shared, rank, device).backward()  # type: ignore[no-untyped-call]
    gradients = gradients_of(model)
    optimizer.step()
    return gradients, weights_of(model)


def data_parallel(device: str, rank: int, zero: bool = False) -> tuple[Tensors, Tensors]:
    """Return (gradients, weights) by name after an AdamW step with DistributedDataParallel.

    device: torch's name of the device. rank: this process's rank, whose micro-batch it trains on. zero: whether ranks
    divide AdamW's state, as in ZeRO's first stage.
    """
    model = small_model(device)
    shared = torch.nn.parallel.DistributedDataParallel(model)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    if zero:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(shared.parameters(), torch.optim.AdamW, lr=LEARNING_RATE)
    return _step(model, shared, optimizer, device, rank)


def fully_sharded(device: str, rank: int, reduce_dtype: torch.dtype | None = None) -> tuple[Tensors, Tensors]:
    """Return (gradients, weights) by name after an AdamW step with FSDP2, which shards parameters, gradients and state.

    device: torch's name of the device. rank: this process's rank, whose micro-batch it trains on. reduce_dtype: dtype
    in which gradients are added over ranks; None for the parameters' dtype.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = small_model(device)
    mesh = init_device_mesh(device.partition(":")[0], (torch.distributed.get_world_size(),))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=reduce_dtype))
    return _step(model, model, torch.optim.AdamW(model.parameters(), LEARNING_RATE), device, rank)


WAYS: dict[str, Callable[[str, int], tuple[Tensors, Tensors]]] = {
    "ddp": data_parallel, "zero1": partial(data_parallel, zero=True), "fsdp2": fully_sharded,
    "fsdp2_bf16": partial(fully_sharded, reduce_dtype=torch.bfloat16),
}  # fmt: skip


def contributions(device: str, rank: int, world: int) -> dict[str, Array]:
    """Return parameter name -> (ranks, n) float32: the gradient of each rank's micro-batch, gathered from all ranks.

    device: torch's name of the device. rank, world: this process's rank, and the number of ranks.
    """
    model = small_model(device)
    loss_of(model, rank, device).backward()  # type: ignore[no-untyped-call]
    gradients = {}
    for name, gradient in gradients_of(model).items():
        received = [torch.empty_like(gradient) for _ in range(world)]
        torch.distributed.all_gather(received, gradient)
        gradients[name] = np.stack([x.cpu().numpy().reshape(-1) for x in received])
    return gradients


def updated(gradients: Tensors, device: str) -> Tensors:
    """Return the parameters of `small_model`, name -> values, after an AdamW step of one process.

    gradients: parameter name -> gradient to use. device: torch's name of the device that takes the step.
    """
    model = small_model(device)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clone()
    torch.optim.AdamW(model.parameters(), LEARNING_RATE).step()
    return weights_of(model)


def compared(
    way: str, parts: Mapping[str, Array], gradients: Tensors, weights: Tensors, device: str
) -> list[ProcessRow]:  # fmt: skip
    """Return the report's two rows for a way of training: its gradients and weights compared with one process's.

    way: name of the way of training, such as "ddp". parts: parameter name -> contributions (ranks, n) of all ranks.
    gradients, weights: results of the way of training. device: torch's name of the device on which one process takes
    AdamW's step.
    """
    wide = np.concatenate([parts[name] for name in gradients], axis=1)
    ranks, fmt = len(wide), BF16 if way.endswith("bf16") else FP32
    alone = (orders_of(ranks)[IN_ORDER](wide) / np.float32(ranks)).astype(np.float32)
    reason = explained(wide, _joined(gradients), fmt)
    words = f"{'rounded to BF16 first and after each addition, ' if fmt == BF16 else ''}{reason}"
    expected = _joined(updated(gradients, device))
    return [
        row_of(way, ranks, "gradients", _joined(gradients), alone, words),
        row_of(way, ranks, "weights", _joined(weights), expected, "AdamW of one process with these gradients"),
    ]


def _joined(tensors: Tensors) -> Array:
    """Return all elements of the tensors, in the order of the dict, as one flat float32 array."""
    return np.concatenate([x.cpu().numpy().reshape(-1) for x in tensors.values()]).astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script in a process that torchrun started; rank 0 prints the report, or writes it to the file of --out.

    arguments: command-line arguments; None for sys.argv. Return the exit status: 0, or 2 if the backend is impossible.
    """
    parser = argparse.ArgumentParser(prog="python -m fpsim.analysis.systems.processes.ways")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help=", ".join(WAYS))
    parser.add_argument("--out", type=Path, help="a file for the rows, in JSON; none: a table is printed")
    parser.add_argument("--backend", help=f"{' or '.join(BACKENDS)}; none: nccl if every process has a GPU")
    options = parser.parse_args(arguments)
    for way in options.ways:
        if way not in WAYS:
            raise unknown("way", way, list(WAYS))
    torch.set_num_threads(1)  # products of few rows may depend on the number of threads
    local = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        backend = chosen_backend(options.backend, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError as problem:
        if not local:
            print(problem, file=sys.stderr)
        return 2
    device = f"cuda:{local}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(local)
    torch.distributed.init_process_group(backend)
    try:
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        parts = contributions(device, rank, world)
        rows = [row for way in options.ways for row in compared(way, parts, *WAYS[way](device, rank), device)]
    finally:
        torch.distributed.destroy_process_group()
    report = ProcessesReport(tuple(rows), backend, torch.__version__)
    if rank == 0 and options.out is not None:
        write_whole(options.out, json.dumps(asdict(report)))
    elif rank == 0:
        print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
