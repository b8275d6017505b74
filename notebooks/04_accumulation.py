# %% [markdown]
# # Why are FP8 sums on Hopper promoted every 128 terms?
#
# Hopper multiplies FP8 matrices with `wgmma`, which adds 32 products at a time to a float32 register. DeepSeek-V3 found
# that the sums are far less exact than float32 ("about 14 bits", "nearly 2 % at K = 4096") and adds every 128 terms to
# a second register. This notebook shows what is lost, where, and how much promotion recovers. `fp.dot_add` computes the bits
# of one step, `fp.analysis.drift` the error of whole sums by their length;
# [docs/matrix-units.md](../docs/matrix-units.md) states the rules of the unit, [docs/drift.md](../docs/drift.md) those of
# the measure.

# %%
import numpy as np

import fpsim as fp

UNIT = "hopper_e4m3_f32"
print(fp.unit(UNIT))

# %% [markdown]
# ## What one step keeps
#
# A step aligns its 32 products and the accumulator to the largest exponent among them, M, and cuts each toward zero to
# a multiple of 2^(M - 13). Then it adds them, and rounds the sum toward zero to 13 mantissa bits. So only 14 bits of a
# term are used: the one at 2^M and 13 below it. Lower bits are lost before the sum begins, however many terms have
# them.
#
# Below, 31 equal products are added to a product of 1. The part of each product below 2^-13 is lost; a product smaller
# than 2^-13 is lost completely.

# %%
small = 2.0**-13 * np.array([128, 3, 1.5, 1, 0.75])
a, b = np.ones((5, 32), np.float32), np.ones((5, 32), np.float32)
a[:, 1:], b[:, 1:] = 2.0**-6, small[:, None] * 2.0**6  # all of them are E4M3 values
sums = fp.dot_add(fp.cast(a, "e4m3"), fp.cast(b, "e4m3"), None, UNIT).view(np.float32)
for product, kept in zip(small, (sums - 1) / (31 * small)):
    print(f"31 products of {product * 2**13:6.2f} * 2^-13: {kept:6.1%} of their sum is kept")

# %% [markdown]
# The accumulator takes part in the alignment. As it grows, the grid becomes coarser: at 2^10 the spacing of the grid is
# 1/8, and each of the 32 new products is cut to a multiple of 1/8. Here the products are those of uniform numbers from
# [0, 1), with mean 1/4.

# %%
generator = np.random.default_rng(0)
x, y = (fp.cast(generator.random((64, 32), np.float32), "e4m3") for _ in range(2))
exact = np.sum(x.astype(float) * y.astype(float), axis=1)
for start in 2.0 ** np.arange(0, 15, 2):
    added = fp.dot_add(x, y, np.full(64, start, np.float32), UNIT).view(np.float32) - start
    print(f"added to {start:6.0f}, a step keeps {np.mean(added / exact):6.1%} of its products' sum")

# %% [markdown]
# A sum of positive terms thus loses a growing part of every step, always in one direction. A sum of terms of both signs
# stays small, and the errors of the cuts cancel in part.
#
# ## How the error grows with K, and what promotion does
#
# A pair (unit, n) adds the partial sum of n terms to a float32 total, to nearest even, and starts the unit again at 0.
# Operands are rounded to E4M3 before anything is added: quantisation is not part of the error.

# %%
lengths = [2**i for i in range(7, 15)]
hows = [UNIT, (UNIT, 1024), (UNIT, 512), (UNIT, 256), (UNIT, 128), (UNIT, 64), (UNIT, 32)]
uniform = fp.analysis.drift("uniform", "uniform", accumulators=hows, lengths=lengths, trials=32)
ax = uniform.plot()
ax.set_title("positive terms: U[0, 1)", loc="left", fontsize=9, fontweight="bold")
# %%
normal = fp.analysis.drift("normal", "normal", accumulators=hows, lengths=lengths, trials=128)
ax = normal.plot()
ax.set_title("terms of both signs: N(0, 1)", loc="left", fontsize=9, fontweight="bold")
# %%
for report in (uniform, normal):
    print(report.a, *report.regimes, sep="\n  ")

# %%
for report in (uniform, normal):
    errors = report.to_frame().query("length == 4096").set_index("accumulator")["norm_relative"]
    print(
        f"{report.a}, K = 4096: promotion every 128 terms makes the error {errors[UNIT] / errors[f'{UNIT}, promote=128']:.0f} times smaller"
    )
    print((errors / errors.shift(-1)).iloc[1:-1].round(1).to_string(header=False), "\n")

# %% [markdown]
# With promotion the error no longer depends on K: it is the error of one interval, since the float32 total adds almost
# no error. Halving the interval (the factors printed above) divides the error by 3 to 4 for positive terms, and by
# about 1.6 for terms of both signs. The cost is one float32 addition for each output and interval: with 128 that is
# 1/128 of the multiply-adds, with 32 four times as much.
#
# ## What theory allows
#
# Cuts toward zero are biased, so for positive terms there is no bound with a square root of K, and the table says NaN.
# For normal terms the cuts have random signs, and both bounds hold. An accumulator of as many bits that rounds to
# nearest would not help long sums: they stagnate when a term no longer changes the sum. With stochastic rounding sums
# don't stagnate.

# %%
normal.to_frame().query("length == 4096")[
    ["accumulator", "norm_relative", "norm_deterministic", "norm_probabilistic", "coverage"]
]

# %%
narrow = fp.Format("ten bits", 6, 9)  # so that 2^14 terms are many
rounded = [
    fp.Sequential(narrow),
    fp.Sequential(narrow, rounding="stochastic", seed=0),
    fp.Chunked(narrow, outer="fp32"),
]
report = fp.analysis.drift("uniform", accumulators=rounded, lengths=lengths)
ax = report.plot()
print(report)

# %% [markdown]
# ## Is 128 enough?
#
# What matters is whether the accumulator's error is visible next to the error from rounding the operands to E4M3.

# %%
k = 4096
samples = {
    "N(0, 1)": generator.standard_normal((2, 256, k)),
    "U[0, 1)": generator.random((2, 256, k)),
    "|N(0, 1)|": np.abs(generator.standard_normal((2, 256, k))),
    "N(0.25, 1)": generator.standard_normal((2, 256, k)) + 0.25,
}
never = {}
print("K = 4096     quantisation   promoted every   128      256     never")
for name, (x, y) in samples.items():
    true = np.sum(x * y, axis=1)
    rounded = np.sum(fp.quantize(x, "e4m3") * fp.quantize(y, "e4m3"), axis=1)
    quantised = np.linalg.norm(rounded - true) / np.linalg.norm(true)
    rows = fp.analysis.drift(x, y, accumulators=[(UNIT, 128), (UNIT, 256), UNIT], lengths=k).rows
    never[name] = rows[-1]
    print(f"{name:12} {quantised:12.1e}             ", "".join(f"{row.norm_relative:9.1e}" for row in rows))

# %% [markdown]
# For N(0, 1) quantisation has an error of 3.5 %, and the accumulator's is always far below it. For positive terms
# quantisation averages out to 0.07 to 0.2 %, and 128 is the longest interval whose error is no larger.
#
# ## What "nearly 2 %" depends on
#
# DeepSeek-V3 (3.3.2) gives a maximum relative error of nearly 2 % for "two random matrices" at K = 4096, without a
# distribution or a metric. Both matter:

# %%
for name, row in never.items():
    print(
        f"{name:12} mean {row.mean_relative:7.2%}   norm {row.norm_relative:7.2%}   largest {row.max_relative:8.2%}   bias {row.bias:+7.2%}"
    )

# %% [markdown]
# ## The answer
#
# One `wgmma` step keeps 14 bits, counted from the largest of its 32 products and the accumulator, and cuts the rest of each
# term off. A growing sum loses ever more of each addition: at K = 4096 sums of positive terms are 6 to 7 % too small, those
# of both signs have an rms error of about 0.1 %. Adding the partial sums to a float32 total every 128 terms makes the error
# independent of K: 5e-4 to 6e-4 for positive terms, as much as quantising to E4M3 causes in such a product, and 1e-4 for
# terms of both signs, a three-hundredth of it. Longer intervals would be visible for positive terms; shorter ones cost more
# additions for a gain that is invisible.
#
# "Nearly 2 %" can only be checked if values and metric are known: for N(0, 1) it is the 98th percentile of the relative
# error, whose maximum has no bound, since sums may be near 0; for positive terms the typical error is three times as large.
