"""The soak: `make soak MINUTES=10 SEED=0` runs short processes, two at a time, that share one folder of kernels.

Some are killed, some find the disk full or the folder not writable, some find damaged files; now and then the folder is
emptied. Every process has to end as it should, and every call to give the digest in tests/data/soak.json, which
`python -m tests.soak --record` writes. It ends with 1 where something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.soak.calls import CALLS, digest

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = ROOT / "tests" / "data" / "soak.json"
AT_A_TIME = 2
EMPTIED = 400  # processes after which the folder is emptied
HANGS = 30.0  # seconds after the end of a process in which its children have to end too
MOST = 20  # findings that are shown
KILLED = -9
HAZARDS = {"none": 60, "kill": 16, "full disk": 8, "no folder": 2, "damage": 14}  # weights


class RunningProcess(NamedTuple):
    """A process of the soak, what threatens it, and when it is to be killed, if at all."""

    seed: int
    hazard: str
    process: subprocess.Popen[str]
    killed_at: float


def start(seed: int, folder: Path) -> RunningProcess:
    """Start the process of a seed."""
    draw = random.Random(seed)
    (hazard,) = draw.choices(list(HAZARDS), list(HAZARDS.values()))
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "FPSIM_CACHE_DIR": str(folder)}
    if hazard == "damage":
        damage(folder, draw)
    elif hazard == "full disk":
        variables["SOAK_FILE_BYTES"] = str(draw.choice([0, 100, 20_000]))
    elif hazard == "no folder":
        variables["FPSIM_CACHE_DIR"] = str(Path(__file__) / "none")
    count = 1 if hazard == "no folder" else draw.randint(1, 6)
    command = [sys.executable, "-m", "tests.soak.process", str(seed), str(count)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    killed_at = time.monotonic() + draw.uniform(0.2, 3.0) if hazard == "kill" else float("inf")
    return RunningProcess(seed, hazard, process, killed_at)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def damage(folder: Path, draw: random.Random) -> None:
    """Flip a bit of a kernel on disk, cut it, or empty it."""
    files = sorted(folder.rglob("*.kernel"))
    if not files:
        return
    path = draw.choice(files)
    content = bytearray(path.read_bytes())
    way = draw.randrange(3)
    if way == 0 and content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content[: draw.randrange(len(content) + 1)] if way == 1 else content if way == 0 else b"")


def finding(ended: RunningProcess, digests: dict[str, str]) -> tuple[int, str]:
    """Return how many calls a process made, and what is wrong with it, "" for nothing."""
    try:
        out, errors = ended.process.communicate(timeout=HANGS)
    except subprocess.TimeoutExpired:  # a child that is left holds the pipes
        kill(ended.process)
        return 0, f"a child of its own did not end within {HANGS} s"
    code, lines = ended.process.returncode, out.splitlines()
    whole = lines[-1:] == ["end"]
    killed = ended.hazard == "kill" and code == KILLED
    calls = [line.split(" ", 1) for line in (out.rpartition("\n")[0].splitlines() if killed else lines) if " " in line]
    wrong = [f"{name} gave {found}" for found, name in calls if digests.get(name) != found]
    if killed:  # its last line may be cut
        return len(calls), "; ".join(wrong)
    if wrong:
        return len(calls), "; ".join(wrong)
    if code or not whole or errors:
        return len(calls), f"exit code {code}: {errors.strip()[-1500:] or 'no word'}"
    return len(calls), ""


def soak(seed: int, seconds: float, processes: int) -> int:
    """Run processes until the time is over or so many have ended; return how many findings there were."""
    digests = json.loads(DIGESTS.read_text())
    end, number, calls, findings = time.monotonic() + seconds, 0, 0, 0
    running: list[RunningProcess] = []
    ended = dict.fromkeys(HAZARDS, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while running or (time.monotonic() < end and number < processes and findings < MOST):
            while len(running) < AT_A_TIME and time.monotonic() < end and number < processes:
                if number % EMPTIED == EMPTIED - 1:
                    for path in folder.rglob("*.kernel"):
                        path.unlink(missing_ok=True)
                running.append(start(seed * 1_000_000 + number, folder))
                number += 1
            time.sleep(0.01)
            for one in list(running):
                if time.monotonic() >= one.killed_at and one.process.poll() is None:
                    kill(one.process)
                if one.process.poll() is not None:
                    running.remove(one)
                    made, wrong = finding(one, digests)
                    calls, ended[one.hazard] = calls + made, ended[one.hazard] + 1
                    if wrong:
                        findings += 1
                        print(f"process {one.seed} ({one.hazard}): {wrong}", flush=True)
    shares = ", ".join(f"{count} {hazard}" for hazard, count in ended.items())
    print(f"{number} processes ({shares}), {calls} calls, {findings} findings, seed {seed}")
    return findings


def main(words: list[str] | None = None) -> int:
    """Run the command; return 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to start processes (default: 10)")
    parser.add_argument("--processes", type=int, default=1_000_000, help="how many to start at most")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default: 0)")
    parser.add_argument("--record", action="store_true", help="write the digests of this machine's results")
    options = parser.parse_args(words)
    if options.record:
        DIGESTS.write_text(json.dumps({name: digest(name) for name in CALLS}, indent=1) + "\n")
        return 0
    return 1 if soak(options.seed, 60 * options.minutes, options.processes) else 0


if __name__ == "__main__":
    sys.exit(main())
