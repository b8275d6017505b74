"""Torch tensors: the bits of the NumPy functions, gradients that pass where nothing was clipped, graphs, no copies."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.processes import ROOT
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")

cast_text: Any = importlib.import_module("fpsim.recipes.cast_text")
library: Any = importlib.import_module("fpsim.torch.operators")
ft: Any = importlib.import_module("fpsim.torch")

Array = npt.NDArray[Any]
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
SCALINGS = ("TILE_1X128", "MX", "NVFP4", "TE_TENSOR")


def tensor(dtype: Any = torch.float32, shape: tuple[int, ...] = (5, 300), seed: int = 0) -> Any:
    """Gaussian numbers of several magnitudes."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape) * np.exp2(generator.integers(-6, 6, (*shape[:-1], 1)))
    return torch.from_numpy(x).to(dtype)


def gradient(y: Any, x: Any, dy: Any = None) -> Any:
    """dx for dy, of ones by default."""
    return torch.autograd.grad(y, x, torch.ones_like(y) if dy is None else dy)[0]


# ---- values


@in_turn("name", SCALINGS)
@in_turn("dtype", DTYPES)
def test_fake_quantize_has_the_values_of_quantize_scaled(dtype: str, name: str) -> None:
    x, scaling = tensor(DTYPES[dtype]), getattr(fp.scalings, name)
    for fmt in ("e4m3", fp.E2M1):
        want = torch.from_numpy(fp.quantize_scaled(x, fmt, scaling))
        assert_bits_equal(ft.quantize_scaled(x, fmt, scaling).numpy(), want.numpy())
        got = ft.fake_quantize(x, fmt, scaling)
        assert got.dtype == x.dtype
        assert torch.equal(got, want.to(x.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fake_quantize_without_a_scaling_has_the_values_of_quantize(dtype: str) -> None:
    x = tensor(DTYPES[dtype])
    got = ft.fake_quantize(x, fp.E4M3, overflow="saturate")
    assert got.dtype == x.dtype
    assert_bits_equal(got.double().numpy(), fp.quantize(x.double().numpy(), fp.E4M3, overflow="saturate"))
    assert_bits_equal(ft.quantize(x, fp.E5M2).numpy(), fp.quantize(x, fp.E5M2))


@pytest.mark.parametrize(
    ("fmt", "changes"),
    [
        (fp.Format("mine", 3, 2), {}),
        (fp.format("p3109_k6p3sf"), {"scale_format": fp.Format("scales", 6, 3, infinities=False, nan="top")}),
        (fp.INT8, {}),
        (fp.UINT4, {"symmetric": False}),
        (fp.IntegerFormat("INT6", 6, signed=True), {"block": (1, 32)}),
        (fp.LogFMT(6), {}),
        ("int4", {"scale_format": "e8m0", "scale_rounding": "nearest_even", "smallest_scale": 2.0**-20}),
        (fp.E4M3, {"quotient": "1/(max/amax)", "amax_floor": 1e-12, "name": "named"}),
    ],
    ids=str,
)
def test_any_format_and_scaling_travels_as_text(fmt: Any, changes: dict[str, Any]) -> None:
    scaling = fp.scalings.TILE_1X128.replace(**changes)
    text = cast_text.spec_text(fmt, scaling, "nearest_even", None, "keep", 32)
    there = cast_text.spec_from(text)
    assert there.scaling == scaling
    assert there.element == fp.encode_scaled(np.ones((1, 1), np.float32), fmt, scaling).fmt
    assert json.loads(text)
    x = tensor()
    assert_bits_equal(ft.quantize_scaled(x, fmt, scaling).numpy(), fp.quantize_scaled(x.numpy(), fmt, scaling))
    x.requires_grad_()
    assert gradient(ft.fake_quantize(x, fmt, scaling), x).isfinite().all()


def test_codes_and_values_are_those_of_the_numpy_functions() -> None:
    x = tensor()
    for fmt in (fp.E4M3, fp.BF16, fp.TF32, fp.FP64):
        codes = ft.encode(x, fmt)
        assert_bits_equal(codes.numpy(), fp.encode(x.numpy(), fmt))
        dtype = torch.float64 if fmt == fp.FP64 else torch.float32
        assert_bits_equal(
            ft.decode(codes, fmt, dtype).numpy(), fp.quantize(x.numpy(), fmt) if fmt != fp.FP64 else x.double().numpy()
        )
    assert ft.view_as_dtype(ft.encode(x, "bf16"), "bf16").dtype == torch.bfloat16
    eights = x.to(torch.float8_e4m3fn)
    assert_bits_equal(ft.decode(eights, "e4m3").numpy(), eights.float().numpy())
    q, scaled = ft.encode_scaled(x, "e2m1", fp.scalings.NVFP4), fp.encode_scaled(x.numpy(), "e2m1", fp.scalings.NVFP4)
    for field in q._fields:
        part = getattr(scaled, field)
        assert (getattr(q, field) is None) == (part is None)
        if part is not None:
            assert_bits_equal(getattr(q, field).numpy(), part)


def test_empty_and_zero_dimensional_tensors_keep_their_shape() -> None:
    for shape in ((), (0,), (3, 0), (2, 1, 5)):
        x = torch.ones(shape, requires_grad=True)
        y = ft.fake_quantize(x, "e4m3", fp.scalings.TILE_1X128)
        assert y.shape == shape
        assert gradient(y, x).shape == shape


# ---- memory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_contiguous_tensors_are_read_where_they_lie(dtype: str) -> None:
    x = tensor().to(getattr(torch, dtype))
    assert library.array_of(x).__array_interface__["data"][0] == x.data_ptr()
    assert library.array_of(torch.nn.Parameter(x, requires_grad=False)).dtype == fp.format(dtype).dtype
    part = x[:, ::2].t()
    assert library.array_of(part).__array_interface__["data"][0] == part.data_ptr()
    assert_bits_equal(
        ft.quantize(part, "e5m2").numpy(),
        fp.quantize(part.float().numpy(), "e5m2").astype(np.float64 if dtype == "float64" else np.float32),
    )


def test_results_own_the_memory_that_numpy_filled() -> None:
    array = fp.encode(tensor().numpy(), "e4m3")
    codes = library.tensor_of(array)
    assert codes.data_ptr() == array.__array_interface__["data"][0]
    assert ft.view_as_dtype(codes, "e4m3").data_ptr() == codes.data_ptr()


# ---- gradients


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_is_one_inside(dtype: str) -> None:
    x = tensor(DTYPES[dtype]).requires_grad_()
    for scaling in (fp.scalings.TILE_1X128, fp.scalings.MX_CEIL, fp.scalings.TE_TENSOR):
        dx = gradient(ft.fake_quantize(x, "e4m3", scaling), x)
        assert dx.dtype == x.dtype
        assert torch.equal(dx, torch.ones_like(x))


def test_the_gradient_is_zero_where_the_floor_rule_of_mx_clips() -> None:
    x = torch.full((2, 32), 100.0)
    x[0, 3], x[1, 5] = 464.0, -511.0  # the scale is 1: 464 still rounds to 448, and -511 saturates
    x.requires_grad_()
    y = ft.fake_quantize(x, fp.E4M3, fp.scalings.MX)
    dx = gradient(y, x)
    assert (y[0, 3].item(), y[1, 5].item()) == (448.0, -448.0)
    assert (dx[0, 3].item(), dx[1, 5].item(), dx.sum().item()) == (1.0, 0.0, 63.0)


def test_the_gradient_is_zero_where_given_scales_clip_and_beyond_the_format() -> None:
    x = torch.tensor([[1.0, 5.0, 6.5, 7.0, 7.5, -9.0]], requires_grad=True)
    for scale, kept in ((1.0, [1, 1, 1, 0, 0, 0]), (0.5, [1, 0, 0, 0, 0, 0]), ([[2.0]], [1] * 6)):
        y = ft.fake_quantize(x, "e2m1", fp.scalings.ROW, scales=scale)
        assert gradient(y, x).tolist() == [kept]
    wild = torch.tensor([1.0, 465.0, float("inf"), float("nan")], requires_grad=True)
    for overflow in ("nonfinite", "saturate"):
        dy = torch.full((4,), float("inf"))
        assert gradient(ft.fake_quantize(wild, "e4m3", overflow=overflow), wild, dy).tolist() == [float("inf"), 0, 0, 0]


@pytest.mark.parametrize("nan", ["tile", "element"])
def test_no_gradient_passes_an_infinity_or_nan_that_logfmt_turns_into_a_level(nan: str) -> None:
    x = torch.tensor([[1.0, 2, float("inf"), -float("inf")], [1, 2, float("nan"), 0]], requires_grad=True)
    y = ft.fake_quantize(x, fp.LogFMT(8), fp.scalings.ROW.replace(nan=nan))
    assert gradient(y, x).tolist() == [[1, 1, 0, 0], [1, 1, 0, 1] if nan == "element" else [0, 0, 0, 0]]


def test_integers_mask_what_torch_masks() -> None:
    x, scale, zero = tensor(), 0.07, 3
    reference = x.clone().requires_grad_()
    y = torch.fake_quantize_per_tensor_affine(reference, scale, 0, -127, 127)
    mine = x.clone().requires_grad_()
    z = ft.fake_quantize(mine, fp.INT8, fp.scalings.TENSOR, scales=scale)
    same = (y - z).abs() < 1e-5  # torch multiplies with 1 / scale, which moves ties
    assert same.float().mean() > 0.999
    assert torch.equal(gradient(y, reference)[same], gradient(z, mine)[same])
    assert zero == 3


def test_backward_formats_quantise_the_gradient_before_the_mask() -> None:
    x = torch.linspace(-600, 600, 256).reshape(2, 128).requires_grad_()
    dy = tensor(shape=(2, 128), seed=1)
    y = ft.fake_quantize(x, "e4m3", overflow="saturate", backward_fmt="e5m2", backward_scaling=fp.scalings.ROW)
    want = torch.from_numpy(fp.quantize_scaled(dy.numpy(), "e5m2", fp.scalings.ROW))
    assert torch.equal(gradient(y, x, dy), torch.where(x.detach().abs() <= 464, want, 0.0))
    half = x.detach().bfloat16().requires_grad_()
    y = ft.fake_quantize(half, "e4m3", overflow="saturate", backward_fmt="e2m1")
    want = torch.from_numpy(fp.quantize(dy.bfloat16(), "e2m1")).bfloat16()
    assert torch.equal(gradient(y, half, dy.bfloat16()), torch.where(half.detach().abs() <= 464, want, 0.0).bfloat16())


def test_a_stochastic_gradient_follows_from_its_seed_and_has_no_bias() -> None:
    x = torch.zeros(1 << 16, requires_grad=True)

    def drawn(seed: Any) -> Any:
        y = ft.fake_quantize(x, "e4m3", backward_fmt="e2m1", backward_rounding="stochastic", backward_seed=seed)
        return gradient(y, x, torch.full_like(x, 1.2))

    assert torch.equal(drawn(5), drawn(5))
    assert torch.equal(drawn(5), drawn(torch.tensor(5)))
    assert not torch.equal(drawn(5), drawn(6))
    # 1 with probability 0.6, else 1.5: the mean of 2^16 has a standard deviation of 0.25 / 2^8
    assert abs(drawn(5).mean().item() - 1.2) < 5 * 0.25 / 2**8
    assert set(drawn(5).tolist()) == {1.0, 1.5}


def test_stochastic_values_are_a_function_of_value_seed_and_index() -> None:
    x = tensor()
    for seed in (0, 1, 2**63 + 5, 2**64 - 1):
        want = fp.quantize_scaled(x.numpy(), "e4m3", fp.scalings.MX, rounding="stochastic", seed=seed)
        got = ft.fake_quantize(x, "e4m3", fp.scalings.MX, rounding="stochastic", seed=seed)
        assert_bits_equal(got.numpy(), want)
    assert_bits_equal(
        ft.encode(x, "e4m3", rounding="SR", seed=torch.tensor([-1])).numpy(),
        fp.encode(x.numpy(), "e4m3", rounding="SR", seed=2**64 - 1),
    )


def test_a_second_derivative_passes_straight_through_as_well() -> None:
    x = torch.tensor([1.0, 2.0, 500.0], requires_grad=True)
    y = ft.fake_quantize(x * x, "e4m3", overflow="saturate")
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert gradient(dx, x).tolist() == [2.0, 2.0, 0.0]


def test_casts_without_a_gradient_say_so() -> None:
    x = tensor().requires_grad_()
    with pytest.raises(RuntimeError, match="a cast has no gradient; got a backward pass"):
        ft.quantize(x, "e4m3").sum().backward()
    assert not ft.encode(x, "e4m3").requires_grad


FORWARD = {
    "fake_quantize": lambda x: ft.fake_quantize(x, "e4m3", fp.scalings.ROW),
    "quantize": lambda x: ft.quantize(x, "e4m3"),
    "quantize_scaled": lambda x: ft.quantize_scaled(x, "e4m3"),
    "QuantLinear": ft.QuantLinear(4, 2, recipe=ft.MXFP8),
}
# torch warns of its own torch.jit.script where it first enters forward mode
ignoring_torch = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@ignoring_torch
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_refused_rather_than_zero(name: str) -> None:
    function, x = FORWARD[name], torch.ones(3, 4)
    message = f"{name} has no derivative in forward mode; got (x|input) with a tangent. Use reverse mode"
    for differentiated in (function, torch.func.vmap(function)):
        with pytest.raises(RuntimeError, match=message):
            torch.func.jvp(differentiated, (x,), (x,))
    with pytest.raises(RuntimeError, match=message):
        torch.func.jacfwd(function)(x)
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(RuntimeError, match=message):
            function(torch.autograd.forward_ad.make_dual(x, x))
        assert function(x).shape == function(torch.ones(3, 4)).shape  # without a tangent
    assert torch.equal(torch.func.vmap(function)(x), function(x))


@ignoring_torch
def test_tangents_of_parameters_are_refused_too() -> None:
    layer: Any = FORWARD["QuantLinear"]
    weight = layer.weight.detach()
    with torch.autograd.forward_ad.dual_level():
        dual = {"weight": torch.autograd.forward_ad.make_dual(weight, weight)}
        with pytest.raises(RuntimeError, match="QuantLinear has no derivative in forward mode; got weight with a"):
            torch.func.functional_call(layer, dual, (torch.ones(3, 4),))


# ---- operators


def test_the_operators_keep_their_contracts() -> None:
    x = tensor(shape=(4, 64)).requires_grad_()
    plain = cast_text.spec_text("e4m3", None, "stochastic", None, "keep", 32)
    scaled = cast_text.spec_text("e4m3", fp.scalings.MX, "nearest_even", None, "keep", 32)
    seed = torch.tensor(3)
    codes = ft.encode(x, "e4m3")
    opcheck = torch.library.opcheck
    opcheck(library.fake_quantize_op, (x, scaled, None, None, plain, seed))
    opcheck(library.fake_quantize_op, (x.detach().double().t().requires_grad_(), plain, seed, None, "", None))
    opcheck(library.quantize_op, (x.detach().bfloat16(), scaled, None, torch.ones(4, 2)))
    opcheck(library.kept_op, (x.detach(), scaled, None))
    opcheck(library.encode_op, (x.detach(), plain, seed))
    opcheck(library.decode_op, (codes, plain, True))


# ---- errors


@in_turn(
    "call, kind, message",
    [
        (lambda x: ft.fake_quantize(x.numpy(), "e4m3"), TypeError, "x must be a torch tensor; got ndarray"),
        (lambda x: ft.quantize(x.int(), "e4m3"), TypeError, "got torch.int32. Convert with x.float()"),
        (lambda x: ft.encode(x.to_sparse(), "e4m3"), TypeError, "x must be a dense tensor; got one of layout"),
        (lambda x: ft.fake_quantize(x, "e4m4"), ValueError, "format must be one of"),
        (lambda x: ft.fake_quantize(x, "e4m3", "mxfp8"), ValueError, "scaling must be one of .*, or None; got 'mxfp8'"),
        (lambda x: ft.fake_quantize(x, "e4m3", 3), TypeError, "scaling must be an fp.Scaling"),
        (lambda x: ft.fake_quantize(x, "int8"), ValueError, "INT8 needs a scale; got scaling=None"),
        (lambda x: ft.fake_quantize(x, "uint8", fp.scalings.MX), ValueError, "needs a zero point"),
        (lambda x: ft.fake_quantize(x, "e4m3", scales=1.0), ValueError, "scales need a scaling"),
        (lambda x: ft.fake_quantize(x, "e4m3", fp.scalings.MX, scales=[1, 2]), ValueError, "one per tile"),
        (lambda x: ft.fake_quantize(x, "e4m3", rounding="up", overflow="sat"), ValueError, "overflow must be one of"),
        (lambda x: ft.fake_quantize(x, "e4m3", rounding="sr"), ValueError, "needs a seed"),
        (lambda x: ft.fake_quantize(x, "e4m3", seed=-1), ValueError, r"seed must be an integer in 0 .. 2\*\*64 - 1"),
        (lambda x: ft.fake_quantize(x, "e4m3", seed=torch.ones(2)), ValueError, "tensor of one integer"),
        (lambda x: ft.fake_quantize(x, "e4m3", random_bits=True), ValueError, "random_bits must be"),
        (lambda x: ft.fake_quantize(x, ["e4m3"]), ValueError, "format must be one of"),
        (
            lambda x: ft.fake_quantize(x, "e4m3", backward_fmt="e5m2", backward_rounding="sr"), ValueError,
            "needs a backward_seed",
        ),
        (lambda x: ft.fake_quantize(x, "e4m3", backward_scaling=fp.scalings.MX), ValueError, "need a backward_fmt"),
        (lambda x: ft.quantize_scaled(x, "e4m3", None), TypeError, "got None. Use quantize"),
        (lambda x: ft.decode(x, "e4m3"), TypeError, "codes must be codes of E4M3"),
        (lambda x: ft.decode(x, "e4m3", torch.float16), ValueError, "dtype must be torch.float32 or torch.float64"),
        (lambda x: ft.view_as_dtype(x, "e2m1"), ValueError, "torch has no dtype that stores one code of E2M1"),
        (lambda x: ft.view_as_dtype(x, "e4m3"), ValueError, "codes of E4M3 must be torch.uint8; got torch.float32"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_sentence(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call(tensor())


def test_tensors_of_other_devices_are_refused_rather_than_copied() -> None:
    elsewhere: Any = type("Elsewhere", (torch.Tensor,), {"device": torch.device("cuda:0")})
    x = torch.ones(3).as_subclass(elsewhere)
    with pytest.raises(ValueError, match=r"got one on cuda:0\. Use x\.cpu\(\), .*, or fp\.gpu, whose functions"):
        ft.fake_quantize(x, "e4m3")
    elsewhere.device = torch.device("mps")
    with pytest.raises(ValueError, match=r"got one on mps\. Use x\.cpu\(\), and move the result\.$"):
        ft.fake_quantize(x, "e4m3")


def test_importing_fpsim_leaves_torch_alone_and_its_absence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nimport fpsim\n"
        "try:\n    import fpsim.torch\nexcept ImportError as e:\n    print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "fpsim.torch needs torch" in done.stdout
    assert "pip install -e '.[torch]' in the checkout" in done.stdout
