# %% [markdown]
# # How fine do scales have to be?
#
# A scale moves values into the range of a small format. There may be one for a tensor, one for each row, for tiles of
# 1x128 or 128x128 values, or for blocks of 32 or 16 as in MX and NVFP4. Finer scales cost bits. This notebook measures
# what they buy: on normal data, on data whose rows differ in size, and on data with an outlier channel.
# [docs/scaling.md](../docs/scaling.md) says how each recipe finds its scales, [docs/measures.md](../docs/measures.md) what
# the figures mean.

# %%
import numpy as np

import fpsim as fp

rng = np.random.default_rng(0)
plain = rng.standard_normal((512, 1024)).astype(np.float32)
S = fp.scalings
GRANULARITIES = ["amax", S.BLOCK_128X128, S.ROW, S.TILE_1X128, S.MX]

# %% [markdown]
# ## Normal data: granularity hardly helps FP8
#
# E4M3 keeps about 31.5 dB over a range of 2^15, so that it does not matter where in this range the values lie. Integers
# have no range: their step is set by the largest value that shares a scale, and every outlier in reach costs precision.

# %%
found = fp.analysis.compare(plain, ["e4m3", "int8"], scalings=[S.TENSOR, *GRANULARITIES[1:]])
found.to_frame()[["format", "scaling", "bits_per_value", "sqnr_db", "lost_energy"]].round(4)

# %% [markdown]
# In 4 bits scales are what makes a format usable: NVFP4's 16 values share a scale with a mantissa, MX's 32 share a power
# of two, whose rounding down cuts the largest value of some blocks off.

# %%
four = fp.analysis.compare(plain, ["e2m1", "int4"], scalings=[S.TENSOR, S.TILE_1X128, S.MX, S.NVFP4])
four.to_frame()[["format", "scaling", "bits_per_value", "sqnr_db", "gain"]].round(3)

# %%
both = fp.analysis.compare(plain, ["e4m3", "int8", "e2m1", "int4"], scalings=[S.TENSOR, S.TILE_1X128, S.MX, S.NVFP4])
print(both)
both.plot()
# %% [markdown]
# ## Rows of different size: gradients of tokens
#
# Here the rows differ by powers of two, as the gradients of tokens do whose loss is small or large. One scale for all
# loses what is smallest. The worst row says so; the SQNR of the whole tensor, which the largest rows rule, does not.

# %%
tokens = plain * np.float32(2.0) ** (6 * rng.standard_normal((512, 1))).astype(np.float32)
for scaling in (S.TENSOR, S.BLOCK_128X128, S.ROW, S.TILE_1X128):
    report = fp.analysis.error(tokens, "e4m3", scaling=scaling, axis=0)
    rows = report.parts["sqnr_db"]
    lost = np.mean(report.parts["underflow_rate"] == 1)
    print(
        f"{scaling!r:26} whole {report.sqnr_db:5.1f} dB, median row {np.median(rows):5.1f}, rows lost whole {lost:.0%}"
    )

# %% [markdown]
# ## An outlier channel
#
# One column is 3000 times larger, as some channels of transformers' activations are. It has nearly all of the energy, so
# that the SQNR of the whole is high whatever becomes of the other 1023 columns.

# %%
outlier = plain.copy()
outlier[:, 7] *= 3000
for fmt, scaling in (("e4m3", S.TENSOR), ("e4m3", S.TILE_1X128), ("int8", S.ROW), ("int8", S.TILE_1X128)):
    report = fp.analysis.error(outlier, fmt, scaling=scaling, axis=1)
    columns = report.parts["sqnr_db"]
    words = f"median column {np.median(columns):5.1f}, a tenth below {np.quantile(columns, 0.1):5.1f}"
    print(f"{fmt} {scaling!r:24} whole {report.sqnr_db:5.1f} dB, {words}")

# %% [markdown]
# ## The answer
#
# Scales buy range, not precision. For FP8 one scale is enough wherever the values that share it lie within 2^15 of each
# other: 31.5 dB with one scale, 31.8 with 1x128 tiles. Rows that differ more need scales of their own, along the axis on
# which they differ. Integers and 4-bit floats have little range, so that each step finer is worth decibels, and an
# outlier destroys what shares its scale: look at the worst channels, not at the SQNR of the whole.
