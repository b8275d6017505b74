"""Several processes: their gradients have the bits of one process that adds the same micro-batches in that order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.testing import assert_bits_equal
from fpsim.torch.operators import one_thread
from fpsim.train.ranks import ENVIRONMENT, Ranks, reduce
from tests.kit.forks import fork
from tests.kit.processes import ROOT
from tests.train.processes.ranks import MICRO, WAYS, gradients, loss, main, model
from tests.train.processes.shared_training import in_two_processes, trained

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch connects no processes", allow_module_level=True)


TRAINED = ("NVFP4", "FP8_DELAYED")
KEPT = "BF16_GRADIENTS"  # whose processes keep their gradients in BF16


def left(folder: Path) -> list[dict[str, Any]]:
    """What two processes of tests.train.processes.ranks left."""
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(2)]


def both(folder: Path, *recipes: str) -> list[dict[str, Any]]:
    """What each of two processes leaves, which have what torchrun sets."""
    in_two_processes(folder, main, folder, list(recipes))
    return left(folder)


def torchrun(*words: str) -> subprocess.Popen[str]:
    """Two processes of tests.train.processes.ranks, in a session of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*command, "-m", "tests.train.processes.ranks", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes leave of every way and of two recipes."""
    return both(tmp_path_factory.mktemp("ranks"), *TRAINED, KEPT)


def by_one(fmt: Any, accumulate: Any, numbers: list[list[int]], count: int | None = None) -> dict[str, torch.Tensor]:
    """The gradients of one process, in which torch adds those of each inner list."""
    found = []
    for some in numbers:
        replica = model()
        for number in some:
            loss(replica, number).backward()  # type: ignore[no-untyped-call]
        found.append(gradients(replica))
    return reduce(found, fmt, accumulate, count)


@pytest.mark.ranks
def test_two_processes_have_the_bits_of_one_whatever_the_format_sum_and_buckets(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0].keys() == ranks[1].keys()
    for name, x in ranks[0].items():
        assert_bits_equal(ranks[1][name], x)
    with one_thread():
        wanted = {way: by_one(fmt, accumulate, [[0], [1]]) for way, (fmt, accumulate, _) in WAYS.items()}
        wanted["micro"] = by_one(fp.BF16, None, [[0, 1], [2, 3]], 2 * MICRO)
    for way, of in wanted.items():
        for name, x in of.items():
            assert_bits_equal(ranks[0][f"{way}/{name}"], x.numpy())
    assert len({of["0.weight"].numpy().tobytes() for of in wanted.values()}) == len(WAYS)  # two differ in buckets alone
    assert_bits_equal(ranks[0]["amax"], np.array([1, 0, np.nan], np.float32))
    assert (ranks[0]["empty"].shape, ranks[0]["one"].shape, int(ranks[0]["one"])) == ((0,), (), 1)


def check_training(recipe: str, ranks: list[dict[str, Any]], **changes: Any) -> None:
    """That both have the bits of one process that takes their micro-batches one after another."""
    with one_thread():
        single = trained(recipe, Ranks.from_environment(), micro_batches=2, **changes)
    for each in ranks:
        assert {name for name in each if name.startswith(f"{recipe}/")} == {f"{recipe}/{name}" for name in single}
        for name, want in single.items():
            assert_bits_equal(each[f"{recipe}/{name}"], np.asarray(want))


@pytest.mark.ranks
@pytest.mark.parametrize("recipe", TRAINED)
def test_two_processes_train_with_the_bits_of_two_micro_batches(recipe: str, ranks: list[dict[str, Any]]) -> None:
    # stochastic draws, gradients that travel in BF16, delayed scales, AdamW and activations computed again included
    check_training(recipe, ranks)


@pytest.mark.ranks
def test_each_process_keeps_its_own_sum_and_they_are_added_in_float32(ranks: list[dict[str, Any]]) -> None:
    check_training(KEPT, ranks, gradients=None)  # what travels is in BF16 already


@pytest.mark.slow
def test_two_processes_train_with_the_bits_of_two_micro_batches_in_float8(tmp_path: Path) -> None:
    with torchrun(str(tmp_path), "DEEPSEEK_V3") as run:
        said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert "Warning: `" not in said
    check_training("DEEPSEEK_V3", left(tmp_path))


def start_two(folder: Path) -> None:
    """torchrun with a program that writes down what it was told."""
    from torch.distributed.run import main as torchrun_main

    program = folder / "program.py"
    program.write_text("import json, os; open(os.environ['RANK'] + '.json', 'w').write(json.dumps(dict(os.environ)))")
    os.chdir(folder)
    warnings.simplefilter("default")  # torchrun's own
    torchrun_main(["--standalone", "--nproc-per-node", "2", str(program)])


def test_torchrun_sets_what_processes_are_known_by(tmp_path: Path) -> None:
    with fork(tmp_path / "said", start_two, tmp_path) as run:
        assert run.end() == 0, run.errors
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for name in ENVIRONMENT:
        assert [told[0][name], told[1][name]] == (["0", "1"] if name == "RANK" else [told[0][name]] * 2)
    assert (told[0]["WORLD_SIZE"], told[0]["OMP_NUM_THREADS"]) == ("2", "1")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="Windows has other signals")
def test_ctrl_c_ends_all_processes_soon(tmp_path: Path) -> None:
    with torchrun(str(tmp_path), "wait") as run:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("*.ready"))) < 2:
            assert time.monotonic() < until
            assert run.poll() is None
            time.sleep(0.1)
        workers = [int(path.read_text()) for path in tmp_path.glob("*.ready")]
        run.send_signal(signal.SIGINT)  # as a terminal does; torchrun's workers are in sessions of their own
        run.communicate(timeout=20)
    assert run.returncode != 0
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


# ---- what is added how


# ---- how many processes


def test_without_torchrun_there_is_one_process_and_its_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    replica = model()
    with Ranks.from_environment() as ranks:
        assert (ranks, ranks.data_parallel(replica, fp.BF16)) == (Ranks.single(), replica)


def test_half_of_what_torchrun_sets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(
        ValueError, match="MASTER_PORT must be set, as torchrun does, or none of them; WORLD_SIZE is not"
    ):
        Ranks.from_environment()


# ---- threads


@pytest.mark.parametrize(("m", "k", "n"), [(512, 128, 384), (512, 256, 128), (384, 512, 128)])
def test_products_and_losses_of_the_trainer_do_not_depend_on_threads(m: int, k: int, n: int) -> None:
    random = torch.Generator().manual_seed(0)
    a, b, bias = (torch.randn(shape, generator=random) for shape in ((m, k), (n, k), (n,)))
    targets = torch.randint(n, (m,), generator=random)

    def computed() -> list[torch.Tensor]:
        logits = torch.nn.functional.linear(a, b, bias).requires_grad_()
        got = torch.nn.functional.cross_entropy(logits, targets)
        return [a @ b.T, logits.detach(), logits.softmax(-1).detach(), *torch.autograd.grad(got, logits), got.detach()]

    threads = torch.get_num_threads()
    try:
        of = []
        for count in (1, 2):
            torch.set_num_threads(count)
            of.append(computed())
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*of, strict=True):
        assert_bits_equal(two.numpy(), one.numpy())
