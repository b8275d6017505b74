"""Scaled quantisation when the processor is set to flush subnormals: the same bits, also from what is kept."""

from __future__ import annotations

import pytest

import fpsim as fp
from tests.kit import processor
from tests.kit.processes import printed, python

ON_X86 = pytest.mark.skipif(not processor.IS_SUPPORTED, reason="sets the state of x86 processors")

SCRIPT = """
    import hashlib, os
    import numpy as np
    import fpsim as fp
    from tests.kit.processor import STATES, set_state

    set_state(STATES["flush both"] if os.environ.get("FLUSH") == "1" else 0)
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


@ON_X86
def test_flushing_changes_no_bit_of_scaled_quantisation() -> None:
    assert python(SCRIPT, FLUSH="1") == printed(SCRIPT)


@ON_X86
def test_a_plan_made_while_flushing_serves_later() -> None:
    script = """
        import numpy as np
        import fpsim as fp
        from tests.kit.processor import STATES, set_state

        set_state(STATES["flush both"])
        fp.encode_scaled(np.zeros((1, 32), np.float32), "e4m3", fp.scalings.TORCHAO_MX)
        set_state(0)
        q = fp.encode_scaled(np.zeros((1, 32), np.float32), "e4m3", fp.scalings.TORCHAO_MX)
        print(q.scales.item() == 2.0**-127, np.abs(q.decode()).max())
    """
    assert python(script) == "True 0.0"


@ON_X86
@pytest.mark.parametrize("state", processor.STATES)
def test_scalings_are_the_same_in_every_state_of_the_processor(state: str) -> None:
    margins = range(-100, 101, 7)
    want = [fp.DelayedScaling("e4m3", margin=margin)._scaled_max for margin in margins]
    with processor.processor_state(processor.STATES[state]):
        for name, scaling in fp.scalings.ROWS.items():
            assert scaling.replace(name=name) == scaling
        assert [fp.DelayedScaling("e4m3", margin=margin)._scaled_max for margin in margins] == want
