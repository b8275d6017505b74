# %% [markdown]
# # Which of my model's layers can go to FP8?
#
# A colleague's tables say that E4M3 holds every tensor at 31 dB, and still one layer ruins the training. `fp.analysis.diagnose`
# multiplies every product of a model as the recipe and the chip do, bit for bit, finds out which are too far off and from which cause,
# measures what they do to the gradients, and recommends ([docs/diagnose.md](../docs/diagnose.md)).
#
# The model is the small transformer of `fp.train` after a few steps; its own batches and its own loss.

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
# The recipe is FP8_TENSOR, E4M3 with a scale from the largest value of each operand. What does not fit it stays in BF16.

# %%
found = fp.analysis.diagnose(model, batches, pair_loss, recipes="FP8_TENSOR")
print(found)

# %% [markdown]
# All layers but one fit. The weight gradient of `blocks.1.attn.qkv` looks as good as the others in its norm, but its gradients
# of queries and keys are thousands of times as small as those of values, which one scale does not hold: single rows of it are lost.
# In the bars, which are cut by cause, all products lose what the rounding of their two operands costs; scales, sums and the
# cast of the result add next to nothing. The marks are what a product inherits from other layers.

# %%
axes = found.plot()

# %% [markdown]
# ## Without scales
#
# The same format, and the values as they are:

# %%
raw = fp.analysis.diagnose(model, batches[:1], pair_loss, recipes="FP8_RAW", layers="blocks.0.mlp.*")
for sentence in raw.sentences:
    print(sentence)

# %% [markdown]
# Gradients of a mean over tokens are small numbers, and E4M3 ends at 2^-9. No layer is at fault: the recipe is. (Other blocks were
# left out with `layers=`, which the last sentence says.)

# %% [markdown]
# ## One bad layer
#
# Now one channel of what the first MLP reads is 3000 times as large, and its weights as small, so that the model computes what it
# did before. Large models grow such channels by themselves. In INT8 with one scale there is nothing left for the other channels:

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
# The weight gradient of that layer looks well in its norm, which the large channel fills. Its single columns are lost, and
# that is what `lines` is for.
#
# ## What to do with it
#
# The recommendation is a recipe of training, and `bad.page("report.html")` has all of this on one page.

# %%
print(bad.plan.to_toml())

# %% [markdown]
# ## The answer
#
# In FP8 with one scale for each tensor all layers of this model can go but one, of which a product stays in BF16: no product loses
# more than its two roundings cost, unless values thousands of times apart share a scale. Without scales no layer can, because
# gradients fall below the range. A table of tensors shows neither that nor the layer with an outlier channel, whose tensors are
# stored well and whose products lose in INT8 what the other channels had to say. FP8 keeps them, since its steps shrink with the numbers.
