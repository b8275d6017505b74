"""Old names of arguments work, warn, and are refused beside the new ones."""

from __future__ import annotations

import pytest

from fpsim.deprecation import renamed_arguments


@renamed_arguments(out_format="out_fmt")
def product(a: int, *, out_fmt: str | None = None) -> tuple[int, str | None]:
    return a, out_fmt


def test_an_old_name_gives_the_same_result_with_a_warning_that_points_to_the_caller() -> None:
    with pytest.warns(DeprecationWarning, match=r"out_format= is now called out_fmt=") as warned:
        assert product(1, out_format="bf16") == (1, "bf16")  # type: ignore[call-arg]
    assert warned[0].filename == __file__


def test_both_names_are_refused() -> None:
    with pytest.raises(TypeError, match="out_fmt and its old name out_format must not both be given"):
        product(1, out_format="bf16", out_fmt="fp16")  # type: ignore[call-arg]


def test_the_new_name_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    assert product(1, out_fmt="bf16") == (1, "bf16")
    assert not recwarn.list
