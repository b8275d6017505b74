"""A processor with every instruction, which is the emulator itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fpsim.cpu import availability, execution, processor, recordings, validation
from fpsim.cpu.emulations import emulation_of
from fpsim.cpu.instructions import ROWS, AnyInstruction
from fpsim.cpu.processor import Processor

EVERY = frozenset(feature for row in ROWS for feature in row.features)
Set = Callable[..., None]


@pytest.fixture
def processor_with(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Take this machine's processor for another one, with these features; its instructions cannot be run."""

    def run(*_: Any) -> Any:
        raise AssertionError("an instruction was about to be compiled and run")

    def set_to(features: frozenset[str] = EVERY, machine: str = "x86_64", llvm: int = 20, tiles: str = "") -> None:
        monkeypatch.setattr(processor, "processor", lambda: Processor(machine, "imagined", features, (llvm, 0, 0)))
        monkeypatch.setattr(processor, "tile_refusal", lambda: tiles)
        monkeypatch.setattr(availability, "described", lambda: {"processor": "imagined"})
        monkeypatch.setattr(execution, "compiled", run)

    return set_to


@pytest.fixture
def emulator(processor_with: Set, monkeypatch: pytest.MonkeyPatch) -> Set:
    """Take the emulator for the processor; the instructions that are named have the last bit of a result changed."""

    def execute(row: AnyInstruction, operands: tuple[Any, ...]) -> Any:
        result = emulation_of(row.name).compute(*operands)
        if row.name in wrong:
            ordinary = np.flatnonzero(result.reshape(-1) & 0x3C00)[0]  # neither a zero nor, as of these inputs, a NaN
            result.reshape(-1)[ordinary] ^= result.dtype.type(1)
        return result

    wrong: list[str] = []

    def set_to(*names: str) -> None:
        wrong[:] = names
        processor_with()
        monkeypatch.setattr(validation, "execute", execute)
        monkeypatch.setattr(recordings, "execute", execute)

    return set_to
