"""Systems under fp.analysis: all-reduces, attention, and checkpoints that are read as real values."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import fpsim as fp
from benchmarks.race import Work
from benchmarks.row import RaceRow, load

RANKS, ELEMENTS = 256, 1 << 16  # of an all-reduce
HEADS, QUERIES, WIDTH = 8, 256, 64  # of attention
SIDE = 2048  # of a matrix in a checkpoint
SECONDS = {"ring": 0.5, "attention": 2.0}  # targets
EXPORTED = ("gptq", "awq", "hqq:int4", "modelopt:nvfp4", "gguf:Q5_1")  # layouts
EXPORTED_A_SECOND = (512 << 20) / 60  # the target: 1 GiB of BF16 in a minute


def rows() -> Iterator[RaceRow]:
    """Yield every race of this file."""
    rng = np.random.default_rng(0)
    sent = fp.encode(rng.standard_normal((RANKS, ELEMENTS), np.float32), "bf16").view(ml_dtypes.bfloat16)
    for algorithm in ("ring", "tree", "direct"):
        work = partial(fp.analysis.collectives.all_reduce, sent, "bf16", algorithm=algorithm)
        rate = sent.size / SECONDS["ring"] if algorithm == "ring" else None
        yield RaceRow(f"all-reduce of {RANKS} ranks, {algorithm} BF16", {"fpsim": work}, {}, rate, sent.size)
    q, k, v = (rng.standard_normal((1, HEADS, QUERIES, WIDTH), np.float32) for _ in range(3))
    terms = 2 * HEADS * QUERIES * QUERIES * WIDTH
    attention: Work = partial(fp.analysis.attention, q, k, v, "fp8_flash")
    yield RaceRow("attention fp8_flash", {"fpsim": attention}, {}, terms / SECONDS["attention"], terms, "term")
    yield from _checkpoints(rng)
    yield from _exports(rng)


def _checkpoints(rng: np.random.Generator) -> Iterator[RaceRow]:
    """Yield the race of reading a checkpoint in DeepSeek's layout against its formula in torch."""
    torch, safetensors = load("torch"), load("safetensors.numpy")
    if torch is None or safetensors is None:
        return
    x = rng.standard_normal((SIDE, SIDE), np.float32)
    q: Any = fp.encode_scaled(x, "e4m3", fp.scalings.BLOCK_128X128)
    tensors = {"layer.weight": torch.from_numpy(q.codes).view(torch.float8_e4m3fn),
               "layer.weight_scale_inv": torch.from_numpy(q.scales)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        load("safetensors.torch").save_file(tensors, path)

        def read() -> Any:
            return fp.analysis.open(path)["layer.weight"]

        def by_torch() -> Any:
            tensors = load("safetensors.torch").load_file(path)
            scales = tensors["layer.weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
            return tensors["layer.weight"].to(torch.float32) * scales

        contestants: dict[str, Work] = {"fpsim": read, "torch": by_torch}
        yield RaceRow("open a checkpoint of DeepSeek", contestants, {"torch": 0.5}, size=SIDE * SIDE)


def _exports(rng: np.random.Generator) -> Iterator[RaceRow]:
    """Yield the race of writing one matrix in each of several layouts, and reading it again."""
    if load("torch") is None:
        return
    tensors = {"layer.weight": rng.standard_normal((SIDE, SIDE), np.float32).astype(ml_dtypes.bfloat16)}
    with tempfile.TemporaryDirectory() as folder:
        for layout in EXPORTED:
            out = Path(folder) / f"model.{'gguf' if layout.startswith('gguf') else 'safetensors'}"
            work: Work = partial(fp.torch.export, tensors, layout=layout, out=out)
            yield RaceRow(f"export to {layout}", {"fpsim": work}, {}, EXPORTED_A_SECOND, SIDE * SIDE)
