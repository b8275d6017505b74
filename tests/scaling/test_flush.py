"""Scaled quantisation when the processor is set to flush subnormals: the same bits, also from what is kept."""

from __future__ import annotations

import pytest

from tests.kit.processes import printed, python

SCRIPT = """
    import hashlib, os
    import numpy as np, torch
    import fpsim as fp

    torch.set_flush_denormal(os.environ.get("FLUSH") == "1")
    bits = np.random.default_rng(0).integers(0, 1 << 26, (6, 64), dtype=np.uint32)
    x = bits.view(np.float32).copy()  # around float32's subnormals
    x[0] = 0
    show = lambda *arrays: hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    names = ("TENSOR", "TENSOR_POW2", "MX", "MX_RCEIL", "NVFP4", "TE_MX", "TORCHAO_MX", "DEEPGEMM_1X128_UE8M0")
    for name in names:
        scaling = getattr(fp.scalings, name)
        q = fp.encode_scaled(x, fp.E4M3, scaling)
        again = fp.encode_scaled(x, fp.E4M3, scaling, scales=q.scales)
        values = fp.quantize_scaled(x, "int8", scaling)
        print(name, q.report, show(q.codes, q.scales, q.decode(), values, again.codes))
    print(show(fp.encode_scaled(x, "logfmt-8").decode(np.float64)))
    state = fp.DelayedScaling("e4m3")
    print(show(*(state.encode(x).scales for _ in range(3))), state.counts)
    print(fp.Scaling(smallest_scale=2.0**-140).lower_bound)
"""


def test_flushing_changes_no_bit_of_scaled_quantisation() -> None:
    pytest.importorskip("torch")
    assert python(SCRIPT, FLUSH="1") == printed(SCRIPT)


def test_a_plan_made_while_flushing_serves_later() -> None:
    pytest.importorskip("torch")
    script = """
        import numpy as np, torch
        import fpsim as fp

        torch.set_flush_denormal(True)
        fp.encode_scaled(np.zeros((1, 32), np.float32), "e4m3", fp.scalings.TORCHAO_MX)
        torch.set_flush_denormal(False)
        q = fp.encode_scaled(np.zeros((1, 32), np.float32), "e4m3", fp.scalings.TORCHAO_MX)
        print(q.scales.item() == 2.0**-127, np.abs(q.decode()).max())
    """
    assert python(script) == "True 0.0"
