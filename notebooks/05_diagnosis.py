# %% [markdown]
# # Which of my model's layers can use FP8?
#
# A colleague's tables say that E4M3 stores every tensor at 31 dB, but one layer ruins the training.
# `fp.analysis.diagnose` computes every product of a model with the bits of the recipe and the chip, finds those with
# too large an error and its cause, measures their effect on the gradients, and recommends what to do
# ([docs/diagnose.md](../docs/diagnose.md)).
#
# The model is the small transformer of `fp.train` after a few steps, with its own batches and its own loss.

# %%
import torch

import fpsim as fp
from fpsim.train import Settings, Trainer, recipes
from fpsim.train.model import pair_loss

trainer = Trainer(recipes.FP32, Settings(steps=20, batch=4, context=32))
losses = [trainer.step()["loss"] for _ in range(20)]
model = trainer.model
batches = [tuple(map(torch.from_numpy, trainer.data.batch(0, step=step, batch=4, context=32))) for step in (20, 21)]
print(f"loss {losses[0]:.2f} before, {losses[-1]:.2f} after 20 steps")

# %% [markdown]
# ## One scale for each tensor
#
# The recipe is FP8_TENSOR, E4M3 with a scale from the largest value of each operand. Products whose errors are too
# large for it stay in BF16.

# %%
diagnosis = fp.analysis.diagnose(model, batches, pair_loss, recipes="FP8_TENSOR")
print(diagnosis)

# %% [markdown]
# All layers can use the recipe. The bars show the error by cause: nearly all of it comes from rounding the two
# operands, very little from scales, sums and the cast of the result. The marks are the error that a product inherits
# from other layers.

# %%
axes = diagnosis.plot()

# %% [markdown]
# The error of a whole product is that of its largest rows. `lines` is the error of single rows or columns, and may be
# three times the limit. It comes closest in the weight gradient of `blocks.1.attn.qkv`: the gradients of queries and
# keys are a thousand times smaller than those of values, and one scale for all leaves them few bits.

# %%
figures = diagnosis.to_frame().query("recipe == 'FP8_TENSOR'").nlargest(3, "lines")
figures[["layer", "product", "error", "lines", "fits"]].round(3)

# %% [markdown]
# ## Without scales
#
# The same format without any scale:

# %%
raw = fp.analysis.diagnose(model, batches[:1], pair_loss, recipes="FP8_RAW", layers="blocks.0.mlp.*")
for sentence in raw.sentences:
    print(sentence)

# %% [markdown]
# Gradients of a mean over tokens are small numbers, and the smallest E4M3 value is 2^-9. The cause is the recipe, not
# a layer. (Other blocks were left out with `layers=`; the last sentence says so.)

# %% [markdown]
# ## One bad layer
#
# Now one channel of the first MLP's input is made 3000 times larger, and its weights 3000 times smaller, so that the
# model computes the same function. Large models develop such channels in training. In INT8 with one scale the values
# of the other channels become zero:

# %%
with torch.no_grad():
    model.blocks[0].norm2.weight[7] *= 3000
    model.blocks[0].mlp.gate_up.weight[:, 7] /= 3000

one = fp.scalings.TENSOR
int8 = fp.torch.LinearRecipe("int8", "int8", "int8", one, one, one)
bad = fp.analysis.diagnose(
    model, batches[1:], pair_loss, recipes={"INT8": int8, "FP8": "FP8_TENSOR"}, layers="blocks.0.mlp.*"
)
for sentence in bad.sentences:
    print(sentence)

# %%
int8_rows = bad.to_frame().query("recipe == 'INT8'")
int8_rows[["layer", "product", "error", "lines", "gradient_error", "fits"]].round(3)

# %% [markdown]
# The weight gradient of that layer has a small error in its norm, which the large channel dominates. But single
# columns become zero, as `lines`, the error of single rows or columns, shows.
#
# ## What to do with it
#
# The recommendation is a recipe of training, and `bad.page("report.html")` has all of this on one page.

# %%
print(bad.plan.to_toml())

# %% [markdown]
# ## The answer
#
# In FP8 with one scale for each tensor all layers of this model fit. No product has a larger error than its two
# roundings cause, unless values that differ by a factor of thousands share a scale. Without scales no layer fits,
# because gradients are below the range. A table of tensors shows neither this nor the layer with an outlier channel:
# the tensors of that layer have a high SQNR, but in INT8 all its other channels become zero. FP8 keeps them, since
# its steps shrink with the values.
