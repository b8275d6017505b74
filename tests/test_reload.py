"""`importlib.reload` of any module, in any order, leaves a package that works."""

from __future__ import annotations

from tests.kit.processes import python
from tests.kit.sweeps import sweep

RELOADED = """
    import dataclasses, importlib, os, pkgutil, random
    import numpy as np
    import fpsim as fp

    names = [module.name for module in pkgutil.walk_packages(fp.__path__, "fpsim.")]
    modules = [importlib.import_module(name) for name in sorted(names) if ".gpu" not in name and "__main__" not in name]
    x = np.float32([[1, 2], [3, 4]])
    assert len(modules) > 400

    def check():
        assert fp.encode(x, "e4m3").tolist() == [[56, 64], [68, 72]]
        assert fp.cast(x, fp.format("bf16")).dtype == "bfloat16"
        assert fp.encode_scaled(x, fp.E4M3, "mx").decode().tolist() == x.tolist()
        assert fp.sum(x, accumulate=fp.Sequential(fp.BF16), axis=1).tolist() == [3, 7]
        a = fp.cast(x, "e4m3")
        assert fp.matmul(a, a, accumulate="hopper_e4m3_f32").tolist() == [[7, 10], [15, 22]]
        split = fp.schedules.cublas("sm_90")
        product = fp.matmul(a, a, accumulate="hopper_e4m3_f32", schedule=split, strict=False)
        assert product.tolist() == [[7, 10], [15, 22]]
        assert fp.train.recipes.ROWS["DEEPSEEK_V3"].linear is not None
        try:
            fp.scalings.MX.block = (1, 1)
        except dataclasses.FrozenInstanceError:
            pass
        else:
            raise AssertionError("a scaling was changed")

    check()
    for seed in range(int(os.environ["ORDERS"])):
        if (child := os.fork()) == 0:
            random.Random(seed).shuffle(modules)
            for module in modules[seed:]:
                importlib.reload(module)
            check()
            print("whole", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""


@sweep("orders", 1, 8)
def test_reloads_in_any_order_leave_a_package_that_works(orders: int) -> None:
    """Found by a user: units and scalings were refused, as their formats were of the class before the reload."""
    assert python(RELOADED, ORDERS=str(orders)).split() == ["whole"] * orders


PARTS = """
    import importlib
    import numpy as np
    import fpsim as fp
    from fpsim.core import number
    from fpsim.sums.kernels import loops  # reads some names in the module and holds others of before

    importlib.reload(number)
    accumulator = fp.Sequential("fp32", rounding="stochastic", seed=1)  # whose sums are those of the core
    assert fp.sum(np.float32([1, 2, 3]), accumulate=accumulator) == 6
"""


def test_kernels_compile_after_a_reload_of_some_modules() -> None:
    """Found by the soak: a kernel met tuples of a class from before the reload beside those of a new one."""
    assert python(PARTS, FPSIM_CACHE_DIR="/dev/null/none", NUMBA_OPT="0") == ""
