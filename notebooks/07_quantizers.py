# %% [markdown]
# # Is this cast right, and if not, what does it do?
#
# A quantizer is easy to write and hard to test: random numbers hardly ever lie on a tie, next to one, or at the edge of
# overflow. This notebook hands four casts to `fp.testing.check_quantizer`, which calls them with every input at which a
# cast can change its mind, and reads what it says. [docs/testing-quantizers.md](../docs/testing-quantizers.md) says what
# is asked and how causes are found.

# %%
from functools import partial
from operator import methodcaller

import ml_dtypes
import numpy as np

import fpsim as fp

MUTANTS = fp.testing.mutants.QUANTIZERS

# %% [markdown]
# ## A right one
#
# ml_dtypes rounds float32 to E4M3 once, to nearest even, and gives NaN for what is too large. It rounds float64 to float32
# first, which `overflow="ml_dtypes"` allows.

# %%
to_e4m3 = methodcaller("astype", ml_dtypes.float8_e4m3fn)
print(fp.testing.check_quantizer(to_e4m3, "e4m3", overflow="ml_dtypes"))

# %% [markdown]
# ## A detour
#
# Going through float16 is common, and right for all but a few numbers: those that float16 rounds onto a tie.

# %%
report = fp.testing.check_quantizer(MUTANTS["through_fp16"].make("e4m3"), "e4m3", raises=False)
print(report)

# %% [markdown]
# Of a million normal numbers 0.4 % come out wrong, each by one unit: a test with a tolerance sees nothing.

# %%
x = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
print(np.mean(MUTANTS["through_fp16"].make("e4m3")(x) != fp.quantize(x, "e4m3")))

# %% [markdown]
# ## The wrong convention
#
# A cast that saturates is no fault where saturation was meant. `fp.policy` gives the words of each library's convention,
# and `identify_quantizer` finds them from results.

# %%
saturating = partial(fp.quantize, fmt="e5m2", rounding="toward_zero", overflow="saturate")
print(fp.testing.identify_quantizer(saturating, "e5m2"))

# %% [markdown]
# ## Scales
#
# Two stacks that both say MXFP8 may find the scale of a block by different rules.

# %%
ceil = partial(fp.encode_scaled, fmt="e4m3", scaling=fp.scalings.MX_CEIL)
print(fp.testing.check_quantizer(ceil, "e4m3", scaling=fp.scalings.MX, raises=False).diagnosis)

# %% [markdown]
# ## Every fault that we know of
#
# Twenty broken quantizers ship as data. What does each look like from outside?

# %%
for mutant in MUTANTS.values():
    found = fp.testing.check_quantizer(mutant.make("e4m3"), "e4m3", raises=False)
    said = "; ".join(found.causes) or ", ".join(one.property for one in found.broken)
    print(f"{mutant.name:18} {found.differ:5} of {found.of} points: {said}")

# %% [markdown]
# ## The answer
#
# A cast is right if it agrees at 3,000 points: every value, every tie and their neighbours, the seams and the specials.
# Where it does not, one sentence is usually enough, since faults are few and each changes its own part of the points. What
# remains open is said too: the rivals that no input of that format could tell apart.
