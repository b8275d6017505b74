"""The products of a quantised linear layer as torch operators, with their gradients."""

from __future__ import annotations

from typing import Any

from fpsim.torch.delayed import GRAD, INPUT, WEIGHT, quantized
from fpsim.torch.hadamard import hadamard
from fpsim.torch.operators import Tensor, array_of, in_backward_pass, operator, tensor_of, torch
from fpsim.torch.plan import NO_CAST, LayerPlan, OperandCast, plan_from
from fpsim.torch.products import CastOperand, multiply
from fpsim.torch.trace import ProductCall, is_watched, show


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, step: Tensor | None, state: Tensor | None, live: Tensor | None,
    plan: str, once: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the result y of a linear layer, (tokens, out), and the state of delayed scales after it.

    Args:
      x, weight, bias: the layer's input (tokens, in), weight (out, in) and bias (out,) or None.
      step: count of forward passes, which seeds stochastic rounding; None without it.
      state: scales from earlier steps, float32 (3, 1 + history). The rows are for x, weight and gradient; each holds
        the encode scale to use and then the history of amax, oldest first. None if the plan has no delayed scales; the
        returned state is then a 0 of shape ().
      live: the layer's buffer of delayed scales, which the backward pass updates; unused here.
      plan: a LayerPlan as JSON, `LayerPlan.text`.
      once: True for a pass in a compiled graph that advances the layer's count or scales, and so must not run again.

    Raises:
      RuntimeError: such a pass runs in a backward pass, as torch.utils.checkpoint repeats it.
    """
    casts = plan_from(plan)
    if once and in_backward_pass():
        raise RuntimeError(
            f"QuantLinear {casts.name!r} cannot repeat its random draws or delayed scales in graphs of torch.compile, "
            "as torch.utils.checkpoint requires. Leave one of the two out for this layer."
        )
    left, row_x = quantized(x, casts.input, step, casts, _row(state, INPUT))
    right, row_w = quantized(weight, casts.weight, step, casts, _row(state, WEIGHT))
    y = _shown("fprop", left, right, "b", bias, casts)
    return y.to(x.dtype), _with_rows(state, {INPUT: row_x, WEIGHT: row_w})  # (tokens, out)


# The products are part of the operators, so that compiled graphs sum in the order of eager mode.
product_op = operator(
    "fpsim::linear", _product,
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? step, Tensor? state, Tensor? live, str plan, bool once=False) "
    "-> (Tensor, Tensor)",
)  # fmt: skip


@product_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Any, step: Any, state: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    """Return uninitialised tensors like the results of `_product` for the same arguments, for torch.compile."""
    return x.new_empty((x.shape[0], weight.shape[0])), _like_state(x, state)


def _like_state(x: Tensor, state: Tensor | None) -> Tensor:
    """Return an uninitialised tensor like the result of `_with_rows(state, ...)`, on the device of x."""
    return x.new_empty(() if state is None else state.shape, dtype=torch.float32)


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, step: Tensor | None, state: Tensor | None, live: Tensor | None, plan: str,
    of_x: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x and of the weight, and the state of delayed scales after the backward pass.

    Each of the three that is not needed is a tensor 0 of shape ().

    Args:
      dy: gradient of the result, (tokens, out).
      x, weight: the operands of the forward pass, (tokens, in) and (out, in).
      step: number of the forward pass, which seeds stochastic rounding; None without it.
      state: delayed scales from before the forward pass, float32 (3, 1 + history), or None. The rows are for x, weight
        and gradient; each holds the encode scale and then the history of amax, oldest first.
      live: the layer's present state of delayed scales, or None if it must not change. The returned copy has a new row
        for dy, and for x and weight where only the backward pass scales them.
      plan: a LayerPlan as JSON, `LayerPlan.text`.
      of_x, of_weight: whether the gradients of x and of the weight are needed.
    """
    casts = plan_from(plan)
    dx, dw, dtype = dy.new_zeros(()), dy.new_zeros(()), _product_dtype(dy)
    rows: dict[int, Tensor | None] = {}
    held = state if live is None else live

    def cast_back(tensor: Tensor, cast: OperandCast, row: int, forward: OperandCast = NO_CAST) -> CastOperand:
        """Cast an operand of the backward pass.

        The operand's new row of delayed scales, if it has any, is stored as rows[row]. row: INPUT, WEIGHT or GRAD.
        forward: the same tensor's cast in the forward pass. If that has delayed scales, they are used again, and
        nothing is stored.
        """
        operand, after = quantized(tensor, cast, step, casts, _row(state if forward.delayed else held, row))
        if after is not None and not forward.delayed:
            rows.setdefault(row, after)
        return operand

    grad = None
    if of_x or not casts.hadamard:
        grad = cast_back(dy, casts.grad, GRAD)
    if of_x:
        assert grad is not None
        right = cast_back(weight, casts.weight_backward, WEIGHT, casts.weight)
        dx = _shown("dgrad", grad, right, "", None, casts).to(dtype)  # (tokens, in)
    if of_weight:
        kept = x
        if casts.stash.spec:
            kept = tensor_of(cast_back(x, casts.stash, INPUT, casts.input).values)
        if casts.hadamard:
            dy, kept = _mixed(dy, casts), _mixed(kept, casts)
        if casts.hadamard or casts.grad_backward != casts.grad:
            grad = cast_back(dy, casts.grad_backward, GRAD)
        right = cast_back(kept, casts.input_backward, INPUT, casts.input)
        assert grad is not None
        dw = _shown("wgrad", grad, right, "a", None, casts).to(dtype)  # (out, in)
    return dx, dw, _with_rows(live, rows)


_gradients_op = operator(
    "fpsim::linear_gradients", _gradients,
    "(Tensor dy, Tensor x, Tensor weight, Tensor? step, Tensor? state, Tensor? live, str plan, bool of_x, "
    "bool of_weight) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@_gradients_op.register_fake
def _(
    dy: Tensor, x: Tensor, weight: Tensor, step: Tensor | None, state: Tensor | None, live: Tensor | None, plan: str,
    of_x: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return uninitialised tensors like the results of `_gradients` for the same arguments, for torch.compile."""
    dtype = _product_dtype(dy)
    dx = dy.new_empty(x.shape, dtype=dtype) if of_x else dy.new_empty(())
    dw = dy.new_empty(weight.shape, dtype=dtype) if of_weight else dy.new_empty(())
    return dx, dw, _like_state(dy, live)


def _refuse_second(ctx: Any, *_: Any) -> None:
    """Raise a RuntimeError in a backward pass through a layer's gradients, which have no derivative."""
    raise RuntimeError(
        "QuantLinear has no second derivative; got a backward pass through its gradients. Leave create_graph out."
    )


_gradients_op.register_autograd(_refuse_second)


def _product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which gradients are computed: torch.float64 for a float64 tensor x, else torch.float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _shown(product: str, a: CastOperand, b: CastOperand, turned: str, bias: Tensor | None, plan: LayerPlan) -> Tensor:
    """Return the product of two operands, and pass it to the functions that watch products.

    product: "fprop", "dgrad" or "wgrad". a, b: the operands before and after their casts. turned: the operand to
    transpose, "a", "b" or "". bias: (N,), or None. plan: the layer's plan, which has the arithmetic of the product.
    """
    how = plan.of(product)
    result = multiply(a, b, turned, how, bias, plan.backend)
    if is_watched():
        left, right = a.transposed if turned == "a" else a, b.transposed if turned == "b" else b
        added = None if bias is None else array_of(bias)
        # copies, because weights and gradients change in place while a watcher may still use the call
        left, right = (cast_operand._replace(source=cast_operand.source.copy()) for cast_operand in (left, right))
        show(ProductCall(plan.name, product, left, right, how, array_of(result).copy(), added))
    return result


def _mixed(x: Tensor, plan: LayerPlan) -> Tensor:
    """Return x (tokens, features) after the plan's Hadamard transform along the tokens, as float32.

    Raises a ValueError unless the number of tokens is a multiple of the transform's size.
    """
    if x.shape[0] % plan.hadamard:
        raise ValueError(
            f"the Hadamard transform of {plan.hadamard} terms needs a multiple of as many tokens; got {x.shape[0]}."
        )
    return tensor_of(hadamard(array_of(x.float()), plan.hadamard, plan.signs))


def _row(state: Tensor | None, row: int) -> Tensor | None:
    """Return row `row` (INPUT, WEIGHT or GRAD) of a layer's state of delayed scales; None if `state` is None."""
    return None if state is None else state[row]


def _with_rows(state: Tensor | None, rows: dict[int, Tensor | None]) -> Tensor:
    """Return a copy of the state of delayed scales with some rows replaced.

    state: float32 (3, 1 + history); without it, the result is a tensor 0 of shape (). rows: {INPUT, WEIGHT or GRAD: the
    new row, or None to keep the old one}.
    """
    if state is None:
        return torch.zeros(())
    new = state.clone()
    for row, values in rows.items():
        if values is not None:
            new[row] = values
    return new


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save in torch's context `ctx` what the backward pass needs.

    Saved are x, weight, step, plan, the dtype of the bias, `state` (the delayed scales from before the forward pass)
    and `live` (the layer's buffer of delayed scales). inputs: the arguments of the forward operator. output: its
    results, which are not used.
    """
    x, weight, bias, step, state, ctx.live, ctx.plan, _ = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, step, state)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients of x, weight and bias, None if not needed, and None for the other five arguments.

    ctx: torch's context, filled by `_setup`. dy: gradient of the layer's result (tokens, out), or None. The delayed
    scales of the layer, a buffer in `ctx`, are updated in place.
    """
    x, weight, step, state = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
    dx = dw = db = None
    if dy is not None:
        dx, dw, live = _gradients_op(dy, x, weight, step, state, ctx.live, ctx.plan, of_x, of_weight)
        dx, dw = dx.to(x.dtype) if of_x else None, dw.to(weight.dtype) if of_weight else None
        if ctx.live is not None:
            ctx.live.copy_(live.detach())
        if ctx.bias_dtype is not None and of_bias:
            # contiguous, because the order in which torch adds depends on strides
            db = dy.to(_product_dtype(dy)).contiguous().sum(0).to(ctx.bias_dtype)
    return dx, dw, db, None, None, None, None, None


product_op.register_autograd(_backward, setup_context=_setup)
