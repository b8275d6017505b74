# %% [markdown]
# # Why does this kernel give other bits?
#
# A kernel multiplies FP8 matrices on Hopper, and its results should be those of CUTLASS's 2xAcc, which adds the unit's
# partial sums to float32 every 128 terms. Some are not. The kernel is known only as a function of two matrices.
# `fp.probe` finds its order of additions and its arithmetic by calling it ([docs/probe.md](../docs/probe.md)), names
# them, and checks the answer on fresh operands.

# %%
from functools import partial

import numpy as np

import fpsim as fp

K = 512
secret = fp.schedules.triton(128, max_num_imprecise_acc=64)
kernel = partial(fp.matmul, accumulate="hopper_e4m3_f32", schedule=secret)
expected = partial(fp.matmul, accumulate="hopper_e4m3_f32", promote=128)

# %% [markdown]
# ## How much differs
#
# Operands whose terms cancel show differences that ordinary operands hide.

# %%
for name in ("normal", "cancelling"):
    a, b = fp.testing.product_operands(name, (64, 64, K), ("e4m3", "e4m3"))
    differ = kernel(a, b) != expected(a, b)
    print(f"{name} operands: {differ.mean():.0%} of {differ.size} elements differ")

# %% [markdown]
# ## Probe it
#
# Each element of the result is one experiment, and a call makes sixteen. In each, two terms are a large number M and
# -M, and all others are small numbers. Small terms that are added to M or -M before these cancel are lost, and the
# result is the number of the others.

# %%
model = fp.probe.matmul(kernel, K, a="e4m3")
print(model)

# %%
print(model.units, model.schedules, sep="\n")
print(f"{model.terms_per_step} terms a step, {model.fraction_bits} fraction bits, {model.alignment}, promoted every {model.promotion} terms")

# %%
model.plot();

# %% [markdown]
# ## Name it
#
# The kernel promotes twice as often as it should. This is where the two orders first differ:

# %%
print(fp.schedules.compare(model.schedule, fp.schedules.cutlass_2xacc(128), K, accumulate=model.unit))

# %% [markdown]
# ## Prove it
#
# The model can compute products too. Here its results are compared with the kernel's on fresh operands of every kind.

# %%
for name in fp.testing.OPERAND_SETS:
    a, b = fp.testing.product_operands(name, (64, 64, K), ("e4m3", "e4m3"), seed=1)
    fp.testing.assert_bits_equal(model.matmul(a, b), kernel(a, b))
print(f"{len(fp.testing.OPERAND_SETS)} kinds of operands: every bit is the kernel's")

# %% [markdown]
# ## Sums without a name
#
# NumPy's sum is not a schedule of a GPU, but its order is found too: blocks of up to 128 terms are summed in eight
# strided chains, which are added in pairs; longer sums are halved first.

# %%
of_numpy = fp.probe.sum(np.sum, 300)
print(of_numpy)
of_numpy.plot();

# %% [markdown]
# A mean is a sum with a factor:

# %%
print(fp.probe.sum(np.mean, 300))

# %% [markdown]
# ## The answer
#
# The kernel promotes its partial sums every 64 terms, as a Triton loop with `max_num_imprecise_acc=64` does, and CUTLASS's
# 2xAcc every 128. Everything else is the same: the unit, 32 terms a step, 13 fraction bits. Calling the function is enough to
# find that out, and to confirm it bit for bit.
