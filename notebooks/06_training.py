# %% [markdown]
# # Which low-precision recipes train as well as BF16?
#
# Ten recipes train the same small transformer: torch's mixed precision, FP8 with one scale per tensor and with the
# tiles of DeepSeek-V3, MXFP8, NVFP4, and some that leave out a safeguard, such as scales or loss scaling. Every matrix
# product has the bits of the chip that the recipe names. For each recipe, does the loss differ from BF16's, and do the
# gradients?
#
# This notebook trains only a few steps, so that it takes seconds. [docs/training.md](../docs/training.md) has the
# results of 250 steps and three seeds, from `fpsim train`.

# %%
import matplotlib.pyplot as plt

import fpsim as fp
from fpsim.train import recipes

small = recipes.FP16_UNSCALED.replace(name="FP16_SMALL_LOSS", loss_factor=2.0**-12)
ten = [
    "FP32", "BF16", "FP16_DYNAMIC", "FP16_UNSCALED", small,
    "FP8_RAW", "FP8_TENSOR", "DEEPSEEK_V3", "MXFP8", "NVFP4",
]  # fmt: skip

# %% [markdown]
# ## The loss
#
# One seed and six steps on handwritten digits are enough to see which recipes fail at once, and too little for any
# other conclusion. `compare` says so itself: fewer than three seeds cannot distinguish recipes.

# %%
comparison = fp.train.compare(ten, seeds=1, steps=6, model="perceptron", measure=3)
print(comparison.answer)
comparison.to_frame()[["recipe", "final_loss", "validation_loss", "difference", "skipped_steps", "lost_updates"]].round(4)

# %%
axes = comparison.plot()

# %% [markdown]
# ## Which values the products lost
#
# Every few steps all operands of all products are measured. In FP8 without scales (FP8_RAW) gradients underflow: they
# are small numbers, and the smallest E4M3 value is 2^-9. With a scale, or in BF16, very few values become zero.

# %%
measured = comparison.measurements()
lost = measured[measured.operand == "output_gradient"]
lost.groupby("recipe", sort=False)[["underflow", "saturation", "sqnr_db"]].median().round(3)

# %% [markdown]
# ## The gradients
#
# `gradient_probe` is more sensitive, and needs no training. It measures, for the same weights and the same 1024 tokens,
# how far the weight gradients of the transformer are from those of float32. Here the weights are the initial ones.

# %%
probed = fp.train.gradient_probe(ten, steps=0)
probed[probed.layer == "all"].set_index("recipe")[["relative_error", "cosine"]]

# %% [markdown]
# Each scenario stresses one property of a format. A loss that is 4096 times smaller has no effect on BF16, whose range is
# that of float32, nor with scales that follow the data, but makes gradients underflow in FP16.

# %%
smaller = fp.train.gradient_probe(["BF16", "FP16_DYNAMIC", "FP16_UNSCALED", "DEEPSEEK_V3"], steps=0, scenario="loss_2^-12")
smaller[smaller.layer == "all"].set_index("recipe")[["relative_error", "cosine"]]

# %% [markdown]
# ## Which product matters most?
#
# NVFP4 has 4 bits in all three products of a layer. Put one at a time back into BF16:

# %%
products = fp.train.gradient_probe(["NVFP4", *fp.train.with_one_product("NVFP4", "BF16")], steps=0)
together = products[products.layer == "all"]
fig, axes = plt.subplots(figsize=(6, 2), layout="constrained")
bars = axes.barh(together.recipe, together.relative_error)
axes.invert_yaxis()
label = axes.set_xlabel("relative error of weight gradients")

# %% [markdown]
# ## The answer
#
# Judged by the loss, all recipes with scales or enough range do. Over 250 steps and three seeds FP16 with a loss scale,
# DeepSeek-V3's FP8 and NVFP4 are within 0.05 nats of BF16, and so is float32. FP16 without a loss scale fails if the
# loss is small, and FP8 without scales is worse in every seed. A short loss curve shows no more than that. The
# gradients distinguish the other recipes: FP16 is more exact than BF16, the error of FP8 is about ten times that of
# BF16, and the error of NVFP4 four times that of FP8, mostly from its forward product. No small run can show whether
# such errors matter over a trillion tokens.
