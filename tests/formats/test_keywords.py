"""Keywords that functions share are shown by each of them, with their defaults, and misspelt ones are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.formats.cast_options import DEFAULTS, cast_options

CASTS = [fp.encode, fp.quantize, fp.cast, fp.explain, fp.gpu.encode, fp.gpu.quantize, fp.gpu.cast]
if find_spec("torch"):
    CASTS += [fp.torch.encode, fp.torch.quantize]
casts = pytest.mark.parametrize("cast", CASTS, ids=lambda cast: f"{cast.__module__}.{cast.__name__}")


@casts
def test_casts_show_the_keywords_of_a_cast_with_their_defaults(cast: Callable[..., Any]) -> None:
    shown = inspect.signature(cast).parameters
    assert {word: shown[word].default for word in DEFAULTS} == DEFAULTS
    assert not [one for one in shown.values() if one.kind is inspect.Parameter.VAR_KEYWORD]
    assert [word for word in shown if word in DEFAULTS] == list(DEFAULTS)


def test_the_checks_of_a_cast_have_the_same_defaults() -> None:
    shown = inspect.signature(cast_options).parameters
    assert {word: shown[word].default for word in list(shown)[1:]} == DEFAULTS


@casts
def test_a_misspelt_keyword_is_refused_with_the_nearest(cast: Callable[..., Any]) -> None:
    x: Any = np.ones(1, np.float32)
    if cast.__module__ == "fpsim.torch.functions":
        x = pytest.importorskip("torch").ones(1)
    with pytest.raises(TypeError, match=rf"{cast.__name__} takes the keywords .*'roundin'\. Did you mean 'rounding'\?"):
        cast(x, "e4m3", roundin="up")


def test_the_sentence_names_the_keywords_of_the_function_itself_too() -> None:
    with pytest.raises(TypeError, match=r"encode takes .*random_bits, out; got 'outt'\. Did you mean 'out'\?"):
        fp.encode(np.ones(1), "e4m3", outt=None)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["add", "from_int"])
def test_operations_refuse_a_misspelt_keyword_with_the_nearest(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} takes the keywords .*got 'tinines'\. Did you mean 'tininess'\?"):
        getattr(fp, name)(np.ones(1, np.int8), "e4m3", tinines="after")
