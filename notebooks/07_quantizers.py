# %% [markdown]
# # Is this cast right, and if not, what does it do?
#
# A quantizer is easy to write and hard to test: random numbers are hardly ever ties, next to ties, or at the edge of
# overflow. This notebook checks four casts with `fp.testing.check_quantizer`, which calls them with every input at which the
# result of a cast changes. [docs/testing-quantizers.md](../docs/testing-quantizers.md) says what is checked and how causes
# are found.

# %%
from functools import partial
from operator import methodcaller

import ml_dtypes
import numpy as np

import fpsim as fp

MUTANTS = fp.testing.mutants.QUANTIZERS

# %% [markdown]
# ## A correct cast
#
# ml_dtypes rounds float32 to E4M3 once, to nearest even, and returns NaN on overflow. It rounds float64 to float32
# first, which `overflow="ml_dtypes"` allows.

# %%
to_e4m3 = methodcaller("astype", ml_dtypes.float8_e4m3fn)
print(fp.testing.check_quantizer(to_e4m3, "e4m3", overflow="ml_dtypes"))

# %% [markdown]
# ## Rounding twice
#
# Going through float16 is common, and right for all but a few numbers: those that float16 rounds onto a tie.

# %%
report = fp.testing.check_quantizer(MUTANTS["through_fp16"].make("e4m3"), "e4m3", raises=False)
print(report)

# %% [markdown]
# Of a million normal numbers 0.4 % are rounded wrongly, each by one ulp. A test with a tolerance doesn't notice this.

# %%
x = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
print(np.mean(MUTANTS["through_fp16"].make("e4m3")(x) != fp.quantize(x, "e4m3")))

# %% [markdown]
# ## The wrong convention
#
# Saturation is a fault only if it isn't wanted. `fp.policy` returns the keywords of each library's convention, and
# `identify_quantizer` finds the keywords of an unknown cast from its results.

# %%
saturating = partial(fp.quantize, fmt="e5m2", rounding="toward_zero", overflow="saturate")
print(fp.testing.identify_quantizer(saturating, "e5m2"))

# %% [markdown]
# ## Scales
#
# Two libraries that both claim MXFP8 may compute the scale of a block by different rules.

# %%
ceil = partial(fp.encode_scaled, fmt="e4m3", scaling=fp.scalings.MX_CEIL)
print(fp.testing.check_quantizer(ceil, "e4m3", scaling=fp.scalings.MX, raises=False).diagnosis)

# %% [markdown]
# ## Every fault that we know of
#
# fpsim includes twenty broken quantizers. Which cause does the check report for each?

# %%
for mutant in MUTANTS.values():
    report = fp.testing.check_quantizer(mutant.make("e4m3"), "e4m3", raises=False)
    cause = "; ".join(report.causes) or ", ".join(failure.property for failure in report.broken)
    print(f"{mutant.name:18} {report.differ:5} of {report.of} points: {cause}")

# %% [markdown]
# ## The answer
#
# A cast is right if it agrees at 3,000 points: every value, every tie and their neighbours, the edges of the subnormal
# and of the whole range, infinities and NaN. If it doesn't agree, one sentence usually names the cause, since there are
# few common faults and each changes different points. The report also lists the other causes that would explain the
# same points.
