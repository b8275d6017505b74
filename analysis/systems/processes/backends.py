"""The choice of torch's backend for communication: nccl between GPUs, gloo between processes on the CPU."""

from __future__ import annotations

from fpsim.errors import require_word

BACKENDS = ("gloo", "nccl")


def chosen_backend(backend: str | None, ranks: int) -> str:
    """Return torch's communication backend for processes on this machine: the requested one, or a default.

    Args:
      backend: "gloo", "nccl", or None for nccl if every process has a GPU, else gloo.
      ranks: number of processes on this machine.

    Raises:
      ValueError: an unknown backend, or nccl with fewer GPUs than processes.

    Example:
      >>> from fpsim.analysis.systems.processes.backends import chosen_backend
      >>> chosen_backend("gloo", 4)
      'gloo'
    """
    import torch

    if backend is not None:
        require_word("backend", backend, BACKENDS)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if backend == "nccl" and gpus < ranks:
        raise ValueError(
            f"backend 'nccl' needs a GPU for each of the {ranks} processes on this machine; it has {gpus}. Take "
            "'gloo', or fewer processes."
        )
    return backend or ("nccl" if gpus >= ranks else "gloo")
