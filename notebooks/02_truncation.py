# %% [markdown]
# # Does it matter how a value is rounded?
#
# Hardware that drops the low bits instead of rounding is smaller, and for one value the difference is half a unit in the
# last place. This notebook shows what it comes to over a whole tensor: how much noise each rounding makes, which part of
# it is a shrinking of the signal, and what averaging makes of the rest. `fp.analysis.error` measures one way to round,
# `fp.analysis.compare` several of them in one pass; [docs/measures.md](../docs/measures.md) says what the figures mean.

# %%
import numpy as np

import fpsim as fp

x = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
ROUNDINGS = ["nearest_even", "toward_zero", "up", "stochastic", "odd"]

# %% [markdown]
# ## One pass over a million normal values

# %%
found = fp.analysis.compare(x, "e4m3", ROUNDINGS, scalings=None, seed=0)
found.to_frame()[["rounding", "sqnr_db", "gain", "bias", "mean_ulp", "max_ulp", "underflow_rate"]].round(4)

# %% [markdown]
# Truncation leaves twice the error of rounding to nearest in ulps, and 5.7 dB less SQNR. The `bias`, the mean error,
# does not tell them apart: truncation toward zero pulls negative values up as much as positive ones down. The `gain`
# does. It is the factor by which the result follows the signal, sum of x times result over sum of x squared: 0.956 for
# truncation, and nearly 1 for the others.
#
# A gain of 0.956 does not average out. It multiplies weights, activations and gradients alike, and two truncated
# operands lose it twice.

# %%
for rounding in ("nearest_even", "toward_zero", "stochastic"):
    a, b = (fp.quantize(np.abs(x[i << 18 : (i + 1) << 18]), "e4m3", rounding=rounding, seed=i) for i in range(2))
    exact = np.abs(x[: 1 << 18]).astype(float) @ np.abs(x[1 << 18 : 2 << 18]).astype(float)
    print(f"{rounding:13} a product of positive sums comes out at {a.astype(float) @ b.astype(float) / exact:.4f}")

# %% [markdown]
# ## By precision
#
# Each bit more halves what truncation takes: 1 - gain is about 0.7 ulp of relative size, 2^-precision times a constant.

# %%
for fmt in ("e2m1", "e5m2", "e4m3", "bf16", "fp16"):
    cut, near = (fp.analysis.error(x, fmt, rounding=how) for how in ("toward_zero", "nearest_even"))
    print(
        f"{fmt:5} gain {cut.gain:.5f} truncated, {near.gain:.5f} to nearest; {near.sqnr_db - cut.sqnr_db:.1f} dB apart"
    )

# %% [markdown]
# ## Where the noise comes from
#
# The report splits the noise by what became of a value: a normal one of the format, a subnormal one, zero, or the
# largest one from beyond the range. On data that fits, rounding of normal values is all of it. On data that is 2^10
# times smaller E4M3 has few normal values left.

# %%
for shift in (0, -6, -10, 10):
    report = fp.analysis.error(x * np.float32(2.0**shift), "e4m3", overflow="saturate")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in report.noise_by_cause.items() if share > 0.005)
    print(f"2^{shift:3}: {report.sqnr_db:5.1f} dB; noise by {shares}")

# %% [markdown]
# ## What stochastic rounding is for
#
# It makes twice the squared noise of rounding to nearest, and is right on average: the mean of n roundings with
# different seeds gains half a bit for each doubling of n. Rounding to nearest gives the same answer every time.

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
# below 1 (0.956 in E4M3), which neither averaging nor longer sums remove. Stochastic rounding costs 3 dB against nearest
# on one value, and keeps the mean; it earns that back where roundings of the same quantity are added up.
