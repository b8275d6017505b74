# %% [markdown]
# # Is a training run on this machine the run of another machine?
#
# Training runs of one model differ from machine to machine: processors add in different orders, libraries round exp
# differently, and after a hundred steps the losses differ visibly. In `fp.train` every operation of a step is
# specified, so that a run has the same digest (a hash of all weights) everywhere. The data here are a text that
# anybody can generate.

# %%
import json
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fpsim as fp

text = Path(mkdtemp()) / "squares.txt"
text.write_text("\n".join(f"{n} squared is {n * n}" for n in range(3000)), newline="\n")

# %% [markdown]
# ## The same digest as on another machine
#
# The recipe is DeepSeek-V3's: FP8 products of an H100, promoted to float32 every 128 terms. This digest was recorded
# on an Intel Emerald Rapids processor.

# %%
RECORDED = "1-cc6fcf97bd23a9cf20754e9daea9e1a1"
run = fp.train.run("DEEPSEEK_V3", steps=8, batch=2, text=text, measure=0)
print(run.digest, "equal" if run.digest == RECORDED else "differs")

# %% [markdown]
# ## What would another chip do?
#
# A B200 keeps more bits when it adds FP8 products. The replay names the first product with another result.

# %%
print(fp.train.replay(run, backend="B200"))

# %% [markdown]
# ## And this processor's own matrix instructions?
#
# With `backend="cpu"` torch.mm multiplies, by AVX512-BF16, AVX512-FP16 or AMX if the processor has them. Such a run
# in BF16 is then trained again by the emulator.

# %%
try:
    own = fp.train.run("BF16", steps=8, batch=2, text=text, measure=0, backend="cpu")
    print(fp.train.replay(own, backend="emulated"))
except ValueError as reason:
    print(reason)  # no rule is known for this processor

# %% [markdown]
# ## And the tensor cores of an H100?
#
# If this machine has a GPU, `backend="hardware"` multiplies by its tensor cores. Otherwise this cell uses a recording
# of runs that an H200 trained, with the digest after each step, and trains the first five steps of DeepSeek-V3's
# recipe again.

# %%
if fp.gpu.available():
    silicon = fp.train.run("DEEPSEEK_V3", steps=8, batch=2, text=text, measure=0, backend="hardware")
    print(fp.train.replay(silicon, backend="emulated"))
else:
    tests = Path(fp.__file__).parents[1] / "tests"
    recording = json.loads((tests / "gpu" / "recordings" / "training-h200-2026-11-27.json").read_text())
    theirs = next(row["digests"] for row in recording["rows"] if row["case"] == "DEEPSEEK_V3, width 128")
    story = Path(mkdtemp()) / "story.txt"
    story.write_text(4 * json.loads((tests / "data" / "training_digests.json").read_text())["text"], newline="\n")
    mine = fp.train.run("DEEPSEEK_V3", steps=5, text=story, measure=0)
    for step, row in enumerate(mine.rows):
        print(step, row["digest"], "equal" if row["digest"] == theirs[step] else "differs")
    print(f"The H200 trained {len(theirs)} steps.")

# %% [markdown]
# ## How far apart are runs with unspecified operations?
#
# The second run uses torch's own operations, starts from the same weights and sees the same batches. Equal losses are
# drawn at 1e-9.

# %%
theirs = fp.train.run("DEEPSEEK_V3", steps=8, batch=2, text=text, measure=0, arithmetic="torch")
distance = [abs(one - other) for one, other in zip(run.losses, theirs.losses, strict=True)]
plt.semilogy(range(len(distance)), [max(d, 1e-9) for d in distance], marker="o")
plt.xlabel("step")
plt.ylabel("difference of the losses (nats)")
plt.title("DEEPSEEK_V3, specified and by torch")
plt.show()

# %% [markdown]
# ## The answer
#
# Yes, if its digest is the recorded one. If it is not, `fp.train.replay` says which operation of which step differs,
# and why. [docs/replay.md](../docs/replay.md) has the details.
