# %% [markdown]
# # Which claims about low precision hold?
#
# Articles, papers and bug reports state numbers that others repeat without a new measurement. `fp.analysis.claims` runs
# an experiment for each claim that a CPU can settle, and [docs/claims.md](../docs/claims.md) lists all claims with
# sources and verdicts. This notebook explains a few of them.

# %%
import matplotlib.pyplot as plt

import fpsim as fp

# %% [markdown]
# ## Formats: is BF16 the more precise one?
#
# An article says so. But BF16 has three bits of precision less than FP16, of 6 dB each; only its range is larger.

# %%
report = fp.analysis.claims(["bf16-precision", "bf16-range", "truncation-bias"])
print(report)
report.to_frame()[["name", "claim", "verdict", "reason"]]

# %% [markdown]
# ## Scales: what do fine scales gain?
#
# Gradients of tokens that differ by powers of two partly become zero if they share a scale. In 4 bits the value that
# the largest element of a block is scaled to matters: NVFP4 scales it to 6, or to the better of 4 and 6.

# %%
print(fp.analysis.claims(["limited-range", "nvfp4-errors", "four-over-six", "four-over-six-bias"]))

# %% [markdown]
# ## Sums: does an all-reduce in BF16 get worse with more ranks?
#
# The error of a ring grows with the square root of the number of ranks, and the error of a tree hardly grows. The
# two-dimensional scheme of some articles doesn't sum all ranks.

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
# Nothing is timed here; the numbers of a claim are only compared with each other.

# %%
print(fp.analysis.claims(["zero-stages", "checkpointing-cost", "v3-cost", "a100-speedup"]))

# %% [markdown]
# ## The answer
#
# Definitions of formats and the published numbers of papers hold, once their set-up is known. Articles are often right
# in direction and wrong in the number or the reason: a rule of loss scaling has the wrong sign, an all-reduce doesn't
# sum all ranks, savings don't follow from the bytes. Claims of speed and cost without a source can only be checked for
# consistency. `fpsim claims --only ring-bf16` repeats the experiment of one claim, and `fpsim claims` those of all in
# minutes.
