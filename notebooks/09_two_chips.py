# %% [markdown]
# # One model on two chips: where do the bits first differ?
#
# A model is trained on one chip and served on another, and its outputs differ. `fp.analysis.diff` runs it under both
# arithmetics, product by product, and finds the first bit that differs and its cause. An arithmetic is a chip, a
# schedule of a library, a recipe, or torch itself; [docs/diff.md](../docs/diff.md) lists their names.
#
# The model here is the small transformer of `fp.train`, trained for a few steps so that its weights are not random.

# %%
import matplotlib.pyplot as plt
import torch

import fpsim as fp
from fpsim.train import Settings, Trainer, recipes

trainer = Trainer(recipes.FP32, Settings(steps=20, batch=4, context=32))
losses = [trainer.step()["loss"] for _ in range(20)]
model = trainer.model
tokens = torch.from_numpy(trainer.data.batch(0, step=20, batch=4, context=32)[0])
print(f"loss {losses[0]:.2f} before, {losses[-1]:.2f} after 20 steps")

# %% [markdown]
# ## In BF16
#
# In BF16 Hopper and Blackwell add the 16 products of a step in the same way: both keep 25 fraction bits, so every bit
# of every product of the model is the same.

# %%
print(fp.analysis.diff(model, tokens, "H100", "B200", recipe="BF16"))

# %% [markdown]
# An A100 adds 8 products at a time and keeps one bit fewer. After rounding to BF16 most sums are equal, and some
# differ.

# %%
older = fp.analysis.diff(model, tokens, "H100", "A100", recipe="BF16")
print(older)

# %% [markdown]
# ## In FP8
#
# Now operands are in E4M3 with one scale for each tensor, and results in BF16. In FP8 the tensor cores differ:
# Hopper's keep 13 fraction bits, Blackwell's 25. The operands of the first product are the same on both chips, so the
# difference below comes from the sums alone. Operands of later products differ too; `growth` has the relative
# difference of each product.

# %%
divergence = fp.analysis.diff(model, tokens, "H100", "B200")
divergence

# %%
axes = divergence.plot()

# %% [markdown]
# A difference in the last bit of BF16 makes some values of the next layer round to another E4M3 value, which is a
# whole step of a 3-bit mantissa. So a relative difference of 1 in 1,000 becomes 1 in 100 within a few layers.
#
# These are the additions that compute the first element that differs, with the same terms in the same order on both
# chips:

# %%
figure, pair = plt.subplots(2, 1, figsize=(6.5, 4.6), layout="constrained")
trees = divergence.plot_trees(pair)

# %% [markdown]
# ## The same chip, another schedule
#
# Libraries on the same chip may add in different orders. On Hopper, cuBLAS starts a new FP8 sum every 128 terms
# unless fast accumulation is requested. A dict assigns an arithmetic to some layers and leaves the others to torch.
# Here torch computes the head, which cuBLAS refuses in FP8, since its 103 outputs are not a multiple of 16. A dict
# can also change a single layer:

# %%
exact = {"blocks.*": fp.schedules.cublas("sm_90")}
fast = {"blocks.*": fp.schedules.cublas("sm_90", fast_accum=True)}
one_layer = fp.analysis.diff(model, tokens, exact, {**exact, "blocks.1.mlp.down": fast["blocks.*"]})
print(one_layer)

# %% [markdown]
# ## Does it matter?
#
# The table also has differences that everybody accepts: between FP8 and float32, and between two orders of float32
# sums, one term after another and in pairs. KL is the Kullback-Leibler divergence of the predicted distributions of
# the next token.

# %%
pairs = {
    "two orders, float32": ("float32", fp.Pairwise("fp32"), None),
    "H100 and A100, BF16": ("H100", "A100", "BF16"),
    "H100 and B200, FP8": ("H100", "B200", None),
    "exact and fast, FP8": (exact, fast, None),
    "torch and FP8": ("torch", "FP8_TENSOR", None),
}
for name, (first, second, recipe) in pairs.items():
    report = fp.analysis.diff(model, tokens, first, second, recipe=recipe, logits=True)
    last = report.growth[-1]
    print(
        f"{name:20} first in {report.layer:16} logits {last.relative:8.1e} of their norm apart, KL {report.kl:8.1e} nats"
    )

# %% [markdown]
# ## The answer
#
# In BF16 an H100 and a B200 compute the same bits, and on an A100 one or two elements of ten thousand differ. In FP8
# the first product already differs, because Hopper's tensor cores keep 13 fraction bits and Blackwell's 25, and the
# casts of the next layers make the difference grow: a few blocks later two thirds of all elements differ, and the
# logits by more than half of the error of FP8 itself. For a user of the model this difference is noise. For a test
# that compares bits, or for somebody who has to repeat a training run, it is a different model.
