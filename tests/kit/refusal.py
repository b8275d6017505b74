"""The sentence with which a call is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refusal(call: Callable[[], Any]) -> str:
    """Return the one line with which a call is refused."""
    with pytest.raises((TypeError, ValueError)) as refused:
        call()
    text = str(refused.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text
