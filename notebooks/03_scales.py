# %% [markdown]
# # How fine do scales have to be?
#
# A scale moves values into the range of a small format. A tensor may have one scale, or a scale for each row, for tiles
# of 1x128 or 128x128 values, or for blocks of 32 or 16 values as in MX and NVFP4. Finer scales cost bits. This notebook
# measures by how many dB they raise the SQNR: on normal data, on data whose rows differ in magnitude, and on data with
# an outlier channel. [docs/scaling.md](../docs/scaling.md) says how each scaling computes its scales,
# [docs/measures.md](../docs/measures.md) defines the metrics.

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
# E4M3 has an SQNR of about 31.5 dB wherever values are within a range of 2^15. Integers have no such range: the largest
# value of a tile sets their step, so every outlier in the tile costs precision.

# %%
comparison = fp.analysis.compare(plain, ["e4m3", "int8"], scalings=[S.TENSOR, *GRANULARITIES[1:]])
comparison.to_frame()[["format", "scaling", "bits_per_value", "sqnr_db", "lost_energy"]].round(4)

# %% [markdown]
# 4-bit formats need scales: 16 values of NVFP4 share a scale with a mantissa, 32 values of MX share a power of two. MX
# rounds the power of two down, so that the largest values of some blocks saturate.

# %%
four = fp.analysis.compare(plain, ["e2m1", "int4"], scalings=[S.TENSOR, S.TILE_1X128, S.MX, S.NVFP4])
four.to_frame()[["format", "scaling", "bits_per_value", "sqnr_db", "gain"]].round(3)

# %%
both = fp.analysis.compare(plain, ["e4m3", "int8", "e2m1", "int4"], scalings=[S.TENSOR, S.TILE_1X128, S.MX, S.NVFP4])
print(both)
both.plot()
# %% [markdown]
# ## Rows of different magnitude: gradients of tokens
#
# Here the rows differ by powers of two, like the gradients of tokens with small and large losses. With one scale for
# all rows the values of the smallest rows become zero. The SQNRs of single rows show this. The SQNR of the whole tensor
# doesn't, because the largest rows dominate it.

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
# One column is 3000 times larger than the others, as some channels of transformers' activations are. It has nearly all
# of the energy, so the SQNR of the whole tensor is high even if the other 1023 columns become zero.

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
# Scales extend the range, not the precision. For FP8 one scale is enough if the values that share it are within 2^15 of
# each other: 31.5 dB with one scale, 31.8 with 1x128 tiles. Rows that differ more need separate scales. Integers and
# 4-bit floats have little range, so finer scales raise their SQNR, and an outlier destroys the values that share its
# scale: look at the worst channels, not at the SQNR of the whole tensor.
