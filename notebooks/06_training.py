# %% [markdown]
# # Which low-precision recipes train as well as BF16?
#
# Ten recipes train the same small transformer: torch's mixed precision, FP8 with one scale per tensor and with the tiles
# of DeepSeek-V3, MXFP8, NVFP4, and some that leave out what the others are careful about. Every matrix product has the
# bits of the chip that the recipe names. Two questions are asked of each: does the loss show it, and do the gradients?
#
# The numbers here are of few steps, so that the notebook takes seconds. [docs/training.md](../docs/training.md) has those
# of 250 steps and three seeds, from `fpsim train`.

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
# One seed and six steps on handwritten digits: enough to see what breaks at once, and too little for anything else.
# `compare` says so itself: fewer than three seeds tell no recipe from another.

# %%
found = fp.train.compare(ten, seeds=1, steps=6, model="perceptron", measure=3)
print(found.answer)
found.to_frame()[["recipe", "final_loss", "validation_loss", "difference", "skipped_steps", "lost_updates"]].round(4)

# %%
axes = found.plot()

# %% [markdown]
# ## What the products lost
#
# Every few steps all operands of all products are measured. Raw FP8 loses gradients to underflow: they are small numbers,
# and E4M3 ends at 2^-9. With a scale, or in BF16, next to nothing becomes zero.

# %%
measured = found.measurements()
lost = measured[measured.operand == "output_gradient"]
lost.groupby("recipe", sort=False)[["underflow", "saturation", "sqnr_db"]].median().round(3)

# %% [markdown]
# ## The gradients
#
# `probe` asks sooner and sharper: at the same weights and for the same 1024 tokens, how far are the weight gradients of
# the transformer from those of float32? Here the weights are those that training begins with.

# %%
probed = fp.train.probe(ten, steps=0)
probed[probed.layer == "all"].set_index("recipe")[["relative_error", "cosine"]]

# %% [markdown]
# The scenarios make it hard for one property of a format at a time. A loss that is 4096 times as small does nothing to
# BF16, whose range is float32's, nor to scales that follow the data, and takes the gradients from FP16.

# %%
smaller = fp.train.probe(["BF16", "FP16_DYNAMIC", "FP16_UNSCALED", "DEEPSEEK_V3"], steps=0, scenario="loss_2^-12")
smaller[smaller.layer == "all"].set_index("recipe")[["relative_error", "cosine"]]

# %% [markdown]
# ## Which product matters most?
#
# NVFP4 has 4 bits in all three products of a layer. Put one at a time back into BF16:

# %%
products = fp.train.probe(["NVFP4", *fp.train.with_one_product("NVFP4", "BF16")], steps=0)
together = products[products.layer == "all"]
fig, axes = plt.subplots(figsize=(6, 2), layout="constrained")
bars = axes.barh(together.recipe, together.relative_error)
axes.invert_yaxis()
label = axes.set_xlabel("relative error of weight gradients")

# %% [markdown]
# ## The answer
#
# By the loss, all that have scales or range enough: over 250 steps and three seeds FP16 with a loss scale, DeepSeek-V3's
# FP8 and NVFP4 lie within 0.05 nats of BF16, as float32 does. FP16 without a loss scale fails where the loss is small, and
# FP8 without scales is worse in every seed. That is a statement about what a small loss curve can show. The gradients
# tell the rest apart: FP16 is more exact than BF16, FP8 is ten times as far from float32 as BF16, NVFP4 four times as far
# as FP8, and its forward product has the largest part in that. Whether it matters over a trillion tokens, no small run
# can say.
