# %% [markdown]
# # Does it matter how a value is rounded?
#
# Hardware that drops the low bits instead of rounding is smaller, and for one value the difference is half a unit in
# the last place. This notebook shows the effect on a whole tensor: how much noise each rounding mode adds, how much of
# it is a shrinking of the signal, and whether averaging removes the rest. `fp.analysis.error` measures one rounding,
# `fp.analysis.compare` several in one pass; [docs/measures.md](../docs/measures.md) defines the metrics.

# %%
import numpy as np

import fpsim as fp

x = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
ROUNDINGS = ["nearest_even", "toward_zero", "up", "stochastic", "odd"]

# %% [markdown]
# ## One pass over a million normal values

# %%
comparison = fp.analysis.compare(x, "e4m3", ROUNDINGS, scalings=None, seed=0)
comparison.to_frame()[["rounding", "sqnr_db", "gain", "bias", "mean_ulp", "max_ulp", "underflow_rate"]].round(4)

# %% [markdown]
# Truncation has twice the mean error of rounding to nearest in ulps, and 5.7 dB less SQNR. The `bias`, the mean error,
# does not show that truncation shrinks values, because negative values move up as much as positive ones move down. The
# `gain` shows it. It is the factor by which the signal is scaled on average, the sum of x times result divided by the
# sum of x squared: 0.956 for truncation and nearly 1 for the other modes.
#
# Averaging does not remove a gain of 0.956. It multiplies weights, activations and gradients alike, and a product of
# two truncated operands is multiplied by it twice.

# %%
for rounding in ("nearest_even", "toward_zero", "stochastic"):
    a, b = (fp.quantize(np.abs(x[i << 18 : (i + 1) << 18]), "e4m3", rounding=rounding, seed=i) for i in range(2))
    exact = np.abs(x[: 1 << 18]).astype(float) @ np.abs(x[1 << 18 : 2 << 18]).astype(float)
    print(f"{rounding:13} a product of positive sums comes out at {a.astype(float) @ b.astype(float) / exact:.4f}")

# %% [markdown]
# ## By precision
#
# Each additional bit of precision halves the loss by truncation: 1 - gain is about 0.7 * 2^-precision.

# %%
for fmt in ("e2m1", "e5m2", "e4m3", "bf16", "fp16"):
    cut, near = (fp.analysis.error(x, fmt, rounding=how) for how in ("toward_zero", "nearest_even"))
    print(
        f"{fmt:5} gain {cut.gain:.5f} truncated, {near.gain:.5f} to nearest; {near.sqnr_db - cut.sqnr_db:.1f} dB apart"
    )

# %% [markdown]
# ## Where the noise comes from
#
# The report splits the noise by the result of a value: a normal value of the format, a subnormal one, zero (underflow), or
# the largest value (saturation). On data in the format's range all noise comes from normal values. On data that is 2^10
# times smaller few values are normal in E4M3.

# %%
for shift in (0, -6, -10, 10):
    report = fp.analysis.error(x * np.float32(2.0**shift), "e4m3", overflow="saturate")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in report.noise_by_cause.items() if share > 0.005)
    print(f"2^{shift:3}: {report.sqnr_db:5.1f} dB; noise by {shares}")

# %% [markdown]
# ## What stochastic rounding is for
#
# Stochastic rounding has twice the squared noise of rounding to nearest, but is right on average: the mean of n
# roundings with different seeds gains half a bit of precision for each doubling of n. Rounding to nearest has the same
# result every time.

# %%
y = x[: 1 << 14].astype(float)
for n in (1, 4, 16, 64):
    roundings = [fp.quantize(x[: 1 << 14], "e4m3", rounding="stochastic", seed=seed).astype(float) for seed in range(n)]
    noise = np.mean((np.mean(roundings, axis=0) - y) ** 2)
    print(f"mean of {n:2} stochastic roundings: {10 * np.log10(np.mean(y**2) / noise):5.1f} dB")

# %% [markdown]
# ## The answer
#
# Yes. Rounding to nearest and truncation differ by 5 to 6 dB at any precision, and much of that is not noise but a gain
# below 1 (0.956 in E4M3), which neither averaging nor longer sums remove. Stochastic rounding has 3 dB less SQNR than
# rounding to nearest for a single rounding, but keeps the mean: it is better where many roundings of the same quantity
# are summed.
