"""What fpsim.gpu takes and gives, layers of torch among it, and what it says when the GPU fails; in the simulator."""

from __future__ import annotations

import importlib
import re
import types
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.gpu.device.device import GpuError
from fpsim.gpu.device.failures import is_no_room, is_of_gpu, size_in_words
from fpsim.testing import assert_bits_equal
from tests.gpu.simulator import layers as simulated_layers
from tests.kit.processes import simulate
from tests.kit.simulated import call
from tests.kit.sweeps import case, sweep

launch: Any = importlib.import_module("fpsim.gpu.device.launch")

FAILURES = [
    r"result the GPU has no room for a result of 12 bytes\. Delete arrays .*, or work on pieces\.",
    r"intermediate the GPU has no room for an intermediate array of 48 bytes\. .*",
    r"cupy the GPU has no room for a result of 3\.0 MiB\. .*",
    r"launch the GPU failed at a kernel over 12 elements: \[719\] Call to cuLaunchKernel results in \w+\.",
    r"afterwards True",
]
TORCH = [
    r"encode torch\.uint8 True",
    r"transposed \(4, 3\) True",
    r"negated True \[-2\.0\]",
    r"negated out out must be contiguous in C order .*",
    r"cast torch\.float8_e4m3fn True",
    r"cast without a dtype of torch torch\.uint8",
    r"sum torch\.float8_e4m3fn True",
    r"bfloat16 torch\.bfloat16 True",
    r"softmax torch\.bfloat16 True",
    r"mixed Tensor",
    r"first operand FakeCUDAArray",
    r"integers torch\.int16 \[196, 72\]",
    r"parameter Tensor",
    r"comparison torch\.uint8",
    r"sparse x must be a dense tensor; got one of layout torch\.sparse_coo\. Use x\.to_dense\(\)\.",
    r"other device x must be on numba.s current GPU, 1; got one on cpu\. .*",
    r"DLPack Tensor",
    r"DLPack of the CPU x must be an array on the GPU: .*; got Foreign\. .*",
    r"DLPack of the CPU x must be an array on the GPU: .*; got ndarray\. .*",
]


def said(*arguments: str) -> list[str]:
    """Return the lines of tests.gpu.simulator.arrays."""
    done = call("tests.gpu.simulator.arrays:main", *arguments)
    assert done.code == 0, done.errors[-2000:]
    return done.out.splitlines()


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    """Return the lines with torch and the results of layers, of one process, as to import torch takes longer."""
    pytest.importorskip("torch")
    file = tmp_path_factory.mktemp("gpu") / "layers.npz"
    lines = said(str(file), "some")
    with np.load(file) as found:
        return lines, dict(found)


def assert_claims(lines: list[str], claims: list[str]) -> None:
    assert len(lines) == len(claims), lines
    for line, claim in zip(lines, claims, strict=True):
        assert re.fullmatch(claim, line), line


@pytest.mark.skipif(bool(find_spec("torch")), reason="with torch, the next test makes these claims too")
def test_a_failing_gpu_says_so_in_one_sentence() -> None:
    assert_claims(said(), FAILURES)


def test_tensors_come_and_go_as_they_are(with_torch: tuple[list[str], dict[str, npt.NDArray[Any]]]) -> None:
    assert_claims(with_torch[0], FAILURES + TORCH)


@sweep("cases", simulated_layers.SOME, simulated_layers.EVERY)
def test_layers_have_the_bits_of_the_cpu(
    cases: dict[str, tuple[int, int, int]], with_torch: tuple[list[str], dict[str, npt.NDArray[Any]]], tmp_path: Path
) -> None:
    """Quantised layers with backend="gpu", forwards and backwards."""
    simulated = with_torch[1]
    if cases is simulated_layers.EVERY:
        simulated = simulate("tests.gpu.simulator.layers", tmp_path / "results.npz", "every")
    for name, sizes in cases.items():
        got = simulated_layers.results(name, sizes, "emulated")
        assert name in ("DEEPSEEK_V3", "MXFP8") or len(got) == 3
        with case(name):
            for key, want in got.items():
                assert_bits_equal(simulated[key], want)


def test_errors_of_the_gpu_are_told_from_others() -> None:
    assert not is_of_gpu(ValueError("CUDA is written here, by someone else"))
    assert is_of_gpu(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_no_room(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert is_no_room(RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"))
    assert [size_in_words(size) for size in (1023, 2048, 3 << 31)] == ["1023 bytes", "2.0 KiB", "6.0 GiB"]


class Recorder:
    """A kernel that notes how it is launched, and fails when told to."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.launches: list[tuple[int, ...]] = []

    def __getitem__(self, configuration: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            self.launches.append(configuration)
            if self.fails:
                raise type("CudaAPIError", (Exception,), {})("[1] CUDA_ERROR_INVALID_VALUE")

        return run


def test_shared_memory_is_asked_for_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper = types.SimpleNamespace(id=0, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=232448, MULTIPROCESSOR_COUNT=132)
    monkeypatch.setattr(launch.cuda, "get_current_device", lambda: hopper)
    monkeypatch.setattr(launch, "is_simulated", lambda: False)
    monkeypatch.setattr(launch, "stream_of", lambda like: 0)
    monkeypatch.setattr(launch, "_REFUSED", set())
    kernel, table = Recorder(), 1 << 16
    assert launch.launch_shared(kernel, None, 1000, 256, each=16)
    assert not launch.launch_shared(kernel, None, 1 << 30, table, each=16), "this kernel cannot be asked"
    monkeypatch.setattr(launch, "_allow_shared", lambda *_: True)
    assert launch.launch_shared(kernel, None, 1 << 30, table, each=16)
    assert not launch.launch_shared(kernel, None, 1 << 30, 1 << 18, each=16), "more than a block can have"
    assert kernel.launches == [(1, 512, 0, 256), (3 * 132, 512, 0, table)]
    refusing = Recorder(fails=True)
    assert not launch.launch_shared(refusing, None, 1 << 30, table, each=16)
    assert not launch.launch_shared(refusing, None, 1 << 30, table, each=16)
    assert len(refusing.launches) == 1, "what was refused is not tried again"
    with pytest.raises(GpuError, match="the GPU failed at a kernel over 5 elements"):
        launch.launch_shared(refusing, None, 5, 256, each=16)


# ---- a driver and a compiler that do not fit


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let numba-cuda find a GPU; what its first kernel does is up to the test."""
    from numba import cuda

    from fpsim.gpu.device import device

    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "is_simulated", lambda: False)
    device._trial.cache_clear()
    device.require_device.cache_clear()
    yield
    device._trial.cache_clear()
    device.require_device.cache_clear()


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("[222] Call to cuLinkAddData results in CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "numba-cuda[cu12]"),
        ("[719] Call to cuLaunchKernel results in CUDA_ERROR_LAUNCH_FAILED", "a first kernel did not run ([719] Call"),
    ],
)
def test_a_gpu_that_runs_no_kernel_is_not_available_and_says_why(
    error: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpsim.gpu.device import device

    def fail() -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(device, "_run_nothing", fail)
    assert not fp.gpu.available()
    with pytest.raises(fp.gpu.GpuError, match=re.escape(advice)) as reason:
        device.require_device()
    assert "\n" not in str(reason.value)


@pytest.mark.usefixtures("present")
def test_a_gpu_that_runs_a_kernel_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    from fpsim.gpu.device import device

    monkeypatch.setattr(device, "_run_nothing", lambda: None)
    assert fp.gpu.available()


@pytest.mark.usefixtures("present")
def test_a_first_call_while_a_graph_is_recorded_is_refused_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found beside a GPU: the first kernel failed inside of the graph, and so did every later call."""
    from fpsim.gpu.device import device

    recorded = [True]
    monkeypatch.setattr(device, "_run_nothing", lambda: None)
    monkeypatch.setattr(device, "is_recording", lambda: recorded[0])
    with pytest.raises(GpuError, match="torch is recording a CUDA graph, where a first call can't run"):
        device.require_device()
    recorded[0] = False
    device.require_device()
    recorded[0] = True
    device.require_device()


def test_a_torch_without_cuda_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: its is_current_stream_capturing raises."""
    from fpsim.gpu.device import device

    monkeypatch.setattr(device, "is_simulated", lambda: False)
    assert not device.is_recording()


@pytest.mark.parametrize("name", ["scratch", "zeroed", "uploaded"])
def test_a_call_that_takes_memory_is_refused_while_a_graph_is_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found beside a GPU: the graph was spoilt, and torch alone said so."""
    cuda = types.SimpleNamespace(is_current_stream_capturing=lambda: True, is_initialized=lambda: True)
    monkeypatch.setitem(importlib.import_module("sys").modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(importlib.import_module("fpsim.gpu.device.device"), "is_simulated", lambda: False)
    monkeypatch.setattr(launch, "device_number", lambda: 0)
    arguments = [np.array([3, 1, 4, 1, 5])] if name == "uploaded" else [4, np.uint8]
    with pytest.raises(GpuError, match=r"a CUDA graph can't record\. Make the same call once before the graph"):
        getattr(launch, name)(*arguments)
