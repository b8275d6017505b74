"""One digest for a run on every machine: whatever the processor, its libraries, threads, kills and processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.forks import fork
from tests.kit.processes import ROOT, python

torch = pytest.importorskip("torch")
from fpsim.train import Ranks, checkpoint, record, settings  # noqa: E402
from tests.train.processes.shared_training import in_two_processes  # noqa: E402
from tests.train.recorded_digests import RECIPES, STEPS, recorded, trained  # noqa: E402

DIGESTS: dict[str, str] = recorded()["digests"]

# Other code of torch, MKL, oneDNN and the C library, other threads, and a thread that flushes subnormals.
OTHER_CODE = {
    "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2", "FPSIM_NUM_THREADS": "3", "OMP_NUM_THREADS": "3",
}  # fmt: skip
SCRIPT = """
    import tempfile
    from pathlib import Path
    import torch
    from tests.train.recorded_digests import trained

    torch.set_num_threads({threads})
    torch.set_flush_denormal({flush})
    with tempfile.TemporaryDirectory() as folder:
        for recipe in {recipes}:
            print(recipe, trained(recipe, Path(folder)).digest)
    print(torch.backends.cpu.get_cpu_capability())
"""


def printed(recipes: tuple[str, ...], flush: bool, threads: int, **environment: str) -> tuple[dict[str, str], str]:
    """Return the digests of recipes in a new process, and the instructions that torch uses there."""
    script = SCRIPT.format(recipes=recipes, flush=flush, threads=threads)
    *lines, capability = python(script, ROOT, **environment).split("\n")
    return dict(line.split() for line in lines), capability


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_has_the_recorded_digest(recipe: str, tmp_path: Path) -> None:
    assert recorded()["version"] == record.VERSION
    assert trained(recipe, tmp_path).digest == DIGESTS[recipe]


def test_other_code_of_libraries_more_threads_and_flushed_subnormals_change_nothing() -> None:
    got, capability = printed(("DEEPSEEK_V3",), True, 3, **OTHER_CODE)
    assert got == {"DEEPSEEK_V3": DIGESTS["DEEPSEEK_V3"]}
    assert capability in ("DEFAULT", "NO AVX")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
@pytest.mark.parametrize("branch", ["AVX2", "COMPATIBLE"])
def test_every_recipe_has_one_digest_with_any_code_of_libraries(capability: str, branch: str, threads: int) -> None:
    variables = {"ATEN_CPU_CAPABILITY": capability, "MKL_CBWR": branch, "FPSIM_NUM_THREADS": str(threads)}
    assert printed(RECIPES, threads == 2, threads, **variables)[0] == DIGESTS


def test_recomputation_and_files_change_no_digest(tmp_path: Path) -> None:
    run = trained("BF16", tmp_path, recompute=0.5, offload=0.5)
    assert run.digest == DIGESTS["BF16"]


def train_and_die(recipe: str, folder: Path) -> None:
    """Train, saving every step, and end without warning in the middle."""
    settings.SAVED_EVERY = 0.0

    def progress(share: float, _: str) -> None:
        if share > 0.5:
            os.kill(os.getpid(), signal.SIGKILL)

    trained(recipe, folder, out=folder / "run", progress=progress)


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
def test_a_killed_run_goes_on_to_the_recorded_digest(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    with fork(tmp_path / "said", train_and_die, "FP16_MASTERS", tmp_path) as process:
        assert process.end() == -signal.SIGKILL, process.errors
    assert 0 < max(checkpoint.steps(tmp_path / "run")) < STEPS
    assert trained("FP16_MASTERS", tmp_path, out=tmp_path / "run").digest == DIGESTS["FP16_MASTERS"]


SHARED: dict[str, dict[str, Any]] = {"FP32": {}, "DEEPSEEK_V3": {"reduction": "bf16"}}


def shared_run(recipe: str, folder: Path, **keywords: Any) -> str:
    """Return the digest of three steps of two micro-batches, whose gradients the recipe's reduction adds."""
    from fpsim.recipes import find

    chosen = find(recipe).replace(**SHARED[recipe])
    return trained(chosen, folder, steps=3, **keywords).digest


def as_rank(folder: Path) -> None:
    """Print the digests of this process, which computes one of the micro-batches."""
    place = folder / os.environ["RANK"]
    place.mkdir()
    with Ranks.from_environment() as ranks:
        for recipe in SHARED:
            print(recipe, shared_run(recipe, place, ranks=ranks))


@pytest.mark.ranks
def test_two_processes_have_the_digest_of_one(tmp_path: Path) -> None:
    want = [f"{recipe} {shared_run(recipe, tmp_path, micro_batches=2)}" for recipe in SHARED]
    assert [process.split("\n")[:-1] for process in in_two_processes(tmp_path, as_rank, tmp_path)] == [want, want]
