"""What several tests of fp.analysis use."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.loops import take_common_loops


@pytest.fixture(autouse=True)
def _common_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures do not depend on which loops quantise in tiles; loops of their own take seconds to compile, each."""
    take_common_loops(monkeypatch)


@pytest.fixture
def cluster() -> Any:
    """A function that starts a small cluster, and gives its client."""
    distributed = pytest.importorskip("distributed", reason="client= needs dask.distributed")
    opened: list[Any] = []

    def start(**settings: Any) -> Any:
        cluster = distributed.LocalCluster(
            threads_per_worker=1, dashboard_address=":0", worker_dashboard_address=None, **settings
        )
        opened.append(cluster)
        client = distributed.Client(cluster)
        opened.append(client)
        return client

    yield start
    for each in reversed(opened):
        each.close()
