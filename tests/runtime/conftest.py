"""What tests of kernels and of their files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.processes import Bare


@pytest.fixture(scope="session")
def bare() -> Iterator[Bare]:
    bare = Bare()
    yield bare
    bare.close()
