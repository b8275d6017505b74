"""Tensors that `fp.analysis.study` reads if given none: linear layers of a transformer that learns Python's manual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpsim.analysis.models.recorder import record
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.display.optional import load

# The model: GPT-like and pre-norm, about 0.4 million parameters. Bytes are the vocabulary, so no tokenizer is needed.
VOCABULARY = 256
WIDTH = 128
HEADS = 4
BLOCKS = 2
CONTEXT = 128  # bytes that the model sees
BATCH = 8
LEARNING_RATE = 2e-3
WARMUP = 20  # steps
ROLES = ("activation", "matrix", "gradient")  # roles of input, weight and output gradient, in the study's order
STEPS = (1, 50, 200)  # training steps at which tensors are recorded; the last one ends the training


@dataclass(frozen=True)
class Capture:
    """Result of a training run of the built-in transformer.

    Attributes:
      tensors: the recorded inputs, weights and output gradients of its linear layers.
      losses: the loss at every step, in nats per byte.
      description: a sentence on the model and its training.
    """

    tensors: tuple[Tensor, ...]
    losses: tuple[float, ...]
    description: str


def capture(
    *, steps: tuple[int, ...] = STEPS, seed: int = 0, progress: Callable[[int, int, str], None] | None = None
) -> Capture:
    """Train a small built-in transformer in float32, and return the tensors of its linear layers.

    Args:
      steps: the training steps to record, counted from 1; training ends after the largest.
      seed: seed of the initial weights and of the batches.
      progress: function called after each step with (steps done, number of steps, text on the activity), or None.
    Returns:
      A Capture with one tensor per layer, role and step; it is the same for the same seed, torch version and machine.
    Raises:
      ImportError: torch is not installed.
      ValueError: there are no steps, or one is below 1.
    """
    from pydoc_data.topics import topics

    if not steps or min(steps) < 1:
        raise ValueError(f"steps must be one or more integers >= 1; got {steps}.")
    torch = load("torch", "the study of the built-in transformer")
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    data = torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))
    numbers, threads = sorted(set(steps)), torch.get_num_threads()
    # one thread is as fast for so small a model, far faster on a busy machine, and sums alike everywhere
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _transformer(torch)
            layers = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
            # the study measures errors
            with record(model, every=numbers, layers=layers, keep=len(numbers), formats=()) as r:
                losses = _train(torch, model, data, numbers[-1], seed, progress)
    finally:
        torch.set_num_threads(threads)
    tensors = sorted(r.tensors, key=lambda kept: (ROLES.index(kept.role), layers.index(kept.layer), kept.step))
    description = (
        f"a {BLOCKS}-layer transformer (width {WIDTH}, {HEADS} heads, context {CONTEXT} bytes, batch {BATCH}) that "
        f"torch {torch.__version__} trained in float32 with AdamW and seed {seed} on the language documentation that "
        f"Python ships; loss {losses[0]:.2f} at step 1, {losses[-1]:.2f} nats per byte at step {numbers[-1]}"
    )
    return Capture(tuple(tensors), tuple(losses), description)


def _train(
    torch: Any, model: Any, data: Any, steps: int, seed: int, progress: Callable[[int, int, str], None] | None
) -> list[float]:
    """Train the model for `steps` steps with AdamW, and return the loss of each step in nats per byte.

    torch: the module. model: the transformer, a torch.nn.Module. data: the bytes of the text, a 1-d int64 tensor. seed:
    seed of the batches. progress: function called after each step with (steps done, number of steps, text on the
    activity), or None.
    """
    generator = torch.Generator().manual_seed(seed)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))
    losses = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP)
        starts = torch.randint(0, data.numel() - CONTEXT, (BATCH,), generator=generator)
        windows = data[starts[:, None] + torch.arange(CONTEXT + 1)]  # (batch, context + 1)
        logits = model(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if progress is not None:
            progress(step, steps, f"training, loss {losses[-1]:.2f}")
    return losses


def _transformer(torch: Any) -> Any:
    """Return the untrained transformer, a torch.nn.Module from bytes (batch, length) to logits (batch, length, 256).

    torch: the module.
    """
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(WIDTH)
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)
            self.norm2 = nn.LayerNorm(WIDTH)
            self.up = nn.Linear(WIDTH, 4 * WIDTH)
            self.down = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
            q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (batch, head, length, width / heads)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.positions = nn.Embedding(CONTEXT, WIDTH)
            self.block1 = Block()
            self.block2 = Block()
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            for parameter in self.parameters():
                if parameter.ndim == 2:
                    nn.init.normal_(parameter, std=0.02)  # as in GPT-2

        def forward(self, codes: Any) -> Any:
            x = self.tokens(codes) + self.positions.weight[: codes.shape[1]]  # (batch, length, width)
            return self.head(self.norm(self.block2(self.block1(x))))

    return Transformer()
