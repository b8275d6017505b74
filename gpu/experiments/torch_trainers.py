"""Training by torch itself on the GPU, whose losses, times and memory are compared with emulated runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from fpsim.lazy import public

LR, BETAS, EPS = 3e-3, (0.9, 0.95), 1e-8  # of fp.train's optimizer
BATCH, CONTEXT = 8, 64
E4M3_MAX, E5M2_MAX = 448.0, 57344.0


class TorchRun(NamedTuple):
    """The result of training by torch.

    Attributes:
      losses: the loss of each step, in nats per token.
      seconds: the time of each step, all GPU work included.
      megabytes: the largest GPU memory that torch had allocated, in MB.
    """

    losses: list[float]
    seconds: list[float]
    megabytes: float


def trained(
    width: int, steps: int, text: str | None, device: str = "cuda", prepare: Callable[[Any, Any], None] | None = None
) -> TorchRun:
    """Train the reference transformer by torch under BF16 autocast, and return losses, times and memory.

    width, steps, text: as for `fpsim.train.run`. device: "cuda", or "cpu" for a test without a GPU.
    prepare: called with torch and the model before the first step.
    """
    import torch as library

    torch: Any = library
    models, data = public("fpsim.train.model"), public("fpsim.train.data").corpus(text)
    config = models.Config(len(data.vocabulary), CONTEXT, width, heads=width // 32, hidden=2 * width)
    model = models.Transformer(config, 0).to(device)
    if prepare is not None:
        prepare(torch, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=0.0, fused=True)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses, seconds = [], []
    for step in range(steps):
        began = time.perf_counter()
        inputs, targets = (torch.from_numpy(x).to(device) for x in data.batch(0, step, 0, batch=BATCH, context=CONTEXT))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(inputs)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    return TorchRun(losses, seconds, torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else 0.0)


def _with_fp8(torch: Any, model: Any) -> None:
    """Make every linear layer of a torch model, except the head, multiply in FP8 by torch's scaled_mm, in place.

    Each operand has one scale, from its own amax.
    """

    def cast(x: Any, dtype: Any, largest: float) -> tuple[Any, Any]:
        scale = (x.abs().amax().float() / largest).clamp_min(1e-12)
        return (x.float() / scale).to(dtype), scale

    def product(a: Any, b: Any) -> Any:
        """Return a @ b^T as bfloat16, for pairs (codes, scale) of (M, K) and (N, K) matrices."""
        return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16)

    class Linear(torch.autograd.Function):  # type: ignore[misc]
        """A torch function: a linear layer whose three products are in FP8."""

        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            rows = x.reshape(-1, x.shape[-1])
            ctx.save_for_backward(rows, weight)
            ctx.shape = x.shape
            result = product(cast(rows, torch.float8_e4m3fn, E4M3_MAX), cast(weight, torch.float8_e4m3fn, E4M3_MAX))
            return result.reshape(*x.shape[:-1], -1)

        @staticmethod
        def backward(ctx: Any, slopes: Any) -> Any:
            rows, weight = ctx.saved_tensors
            g = slopes.reshape(-1, slopes.shape[-1])
            down = torch.float8_e5m2, E5M2_MAX
            up = torch.float8_e4m3fn, E4M3_MAX
            of_x = product(cast(g, *down), cast(weight.t().contiguous(), *up))
            of_weight = product(cast(g.t().contiguous(), *down), cast(rows.t().contiguous(), *up))
            return of_x.reshape(ctx.shape), of_weight.float()

    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and name != "head":
            module.forward = lambda x, module=module: Linear.apply(x, module.weight)


TRAINERS: dict[str, Callable[..., TorchRun]] = {
    "torch BF16": trained, "torch FP8": partial(trained, prepare=_with_fp8),
}  # fmt: skip
