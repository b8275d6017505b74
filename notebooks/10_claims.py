# %% [markdown]
# # Which claims about low precision hold?
#
# Articles, papers and bug reports state figures that are repeated without being measured again. `fp.analysis.claims` runs
# an experiment for each that a CPU can settle, and [docs/claims.md](../docs/claims.md) lists all of them with sources and
# verdicts. Here are a few, with the meaning of their numbers.

# %%
import matplotlib.pyplot as plt

import fpsim as fp

# %% [markdown]
# ## Formats: is BF16 the more precise one?
#
# An article says so. It has three bits less than FP16, of 6 dB each, but a larger range.

# %%
report = fp.analysis.claims(["bf16-precision", "bf16-range", "truncation-bias"])
print(report)
report.to_frame()[["name", "claim", "verdict", "reason"]]

# %% [markdown]
# ## Scales: what do fine ones gain?
#
# Gradients of tokens that differ by powers of two are lost if they share a scale. In 4 bits the value that the largest element of a
# block is scaled to matters: NVFP4 scales it to 6, or to the better of 4 and 6.

# %%
print(fp.analysis.claims(["limited-range", "nvfp4-errors", "four-over-six", "four-over-six-bias"]))

# %% [markdown]
# ## Sums: does an all-reduce in BF16 get worse with more ranks?
#
# By a ring, with the square root of the number of ranks; by a tree, hardly; and the two-dimensional scheme of some
# articles doesn't sum all ranks at all.

# %%
ring = fp.analysis.claims("ring-bf16")["ring-bf16"].figures
ranks = [8, 32, 128, 512, 2048]
errors = [ring[f"ring, {n} ranks"] for n in ranks]
plt.loglog(ranks, errors, "o-", label="BF16 ring")
plt.loglog(ranks, [errors[0] * (n / 8) ** 0.5 for n in ranks], ":", label="square root of the ranks")
plt.xlabel("ranks")
plt.ylabel("relative error")
plt.legend()

# %%
print(fp.analysis.claims(["two-level-all-reduce", "promotion", "shuffled-sums"]))

# %% [markdown]
# ## Loss scaling: do the rules in circulation work?

# %%
print(fp.analysis.claims(["eager-loss-scaling", "inverted-scaling", "norm-driven-scaling", "mean-over-classes"]))

# %% [markdown]
# ## Memory and cost: do the numbers agree with each other?
#
# Nothing is timed here; arithmetic decides.

# %%
print(fp.analysis.claims(["zero-stages", "checkpointing-cost", "v3-cost", "a100-speedup"]))

# %% [markdown]
# ## The answer
#
# Definitions of formats and the published numbers of papers hold, once their set-up is known. Articles are often right in
# direction and wrong in the number or the reason: rules of loss scaling have an inverted sign, an all-reduce doesn't reduce,
# savings don't follow from the bytes. Claims of speed and cost without a source can only be
# checked for consistency. `fpsim claims --only ring-bf16` repeats a row, and `fpsim claims` all of them in minutes.
