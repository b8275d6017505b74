"""Threads of numba's CUDA simulator that take turns, and that find the same shared memory."""

from __future__ import annotations

import sys
import threading
from typing import Any


class _Worker(threading.Thread):
    """A thread of Python that is one simulated thread after another, and stays for the blocks to come.

    Only one runs at a time: whoever waits gives its turn to another. A kernel without barriers needs a single worker.
    """

    idle: list[_Worker] = []  # noqa: RUF012  # those that are no thread of a block

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._turn = threading.Lock()
        self._turn.acquire()
        self.block: _Block
        self.start()

    def run(self) -> None:
        while True:
            self._turn.acquire()
            self.block.work(self)
            block = self.block
            _Worker.idle.append(self)
            block.pass_on()

    def take_turn(self) -> None:
        """Run, as soon as the worker that runs now waits."""
        self._turn.release()

    def wait_turn(self) -> None:
        self._turn.acquire()

    def become(self, block: _Block, place: tuple[int, ...], number: int) -> None:
        """Be a thread of a block; the simulator asks for these names."""
        self.blockIdx, self.threadIdx, self.thread_id = block.index, block.dim3(*place), number

    def syncthreads(self) -> None:
        """Wait as cuda.syncthreads does."""
        self.block.meet(self)


class _Block:
    """The threads of a block, from barrier to barrier; one that is done has come to all the barriers that follow.

    The last one begins, and at every barrier the order turns: where a barrier is missing between what one thread writes
    and another one reads, they come in the wrong order before the first barrier or after it.
    """

    def __init__(self, manager: Any, grid_point: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        from numba.cuda.simulator.kernelapi import Dim3

        self._function, self._arguments, self.dim3 = manager._f, arguments, Dim3
        self.index = Dim3(*grid_point)
        x, y, z = (range(length) for length in manager._block_dim)
        self._new = [(i, j, k) for k in z for j in y for i in x]  # threads that have not begun
        self._ready: list[_Worker] = []  # they have left the last barrier
        self._waiting: list[_Worker] = []  # they have come to the next one
        self._failure: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        self.pass_on()
        self._done.acquire()
        if self._failure is not None:
            raise self._failure

    def work(self, worker: _Worker) -> None:
        """Be one thread after another, as long as there are threads that have not begun."""
        while self._new and self._failure is None:
            place = self._new.pop()
            worker.become(self, place, len(self._new))
            try:
                self._function(*self._arguments)
            except BaseException as error:
                self._failure = self._failure or error
                error.add_note(f"in the thread {place} of the block {self.index}")

    def meet(self, worker: _Worker) -> None:
        """Wait at a barrier, until all other threads are there or done."""
        self._waiting.append(worker)
        self.pass_on()
        worker.wait_turn()
        if self._failure is not None:
            raise RuntimeError("another thread of the block failed before this one left the barrier")

    def pass_on(self) -> None:
        """Give the turn to a thread that has not begun, to one that has left the barrier, or to who waits for all."""
        if self._new and self._failure is None:
            worker = _Worker.idle.pop() if _Worker.idle else _Worker()
            worker.block = self
        else:
            if not self._ready:
                self._ready, self._waiting = self._waiting, self._ready
            if not self._ready:
                self._done.release()
                return
            worker = self._ready.pop()
        worker.take_turn()


def _run_block(manager: Any, grid_point: tuple[int, ...], *arguments: Any) -> None:
    """Run a block as the simulator does."""
    _Block(manager, grid_point, arguments).run()


def _shared_array(shared: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:
    """cuda.shared.array: an array for each line that asks for one; numba's own reads the files of all its callers."""
    import numpy as np
    from numba.cuda import types
    from numba.cuda.np import numpy_support

    assert alignment is None
    if isinstance(dtype, types.Type):
        dtype = numpy_support.as_dtype(dtype)
    if shape == 0:  # what the launch asked for
        dtype = np.dtype(dtype)
        return np.frombuffer(shared._dynshared.data, dtype, shared._dynshared_size // dtype.itemsize)
    caller = sys._getframe(1)
    line = caller.f_code.co_filename, caller.f_lineno
    if line not in shared._allocations:
        shared._allocations[line] = np.empty(shape, dtype)
    return shared._allocations[line]


def prepare() -> None:
    """Let the threads of a block take turns at barriers of this file, and share what they allocate.

    The simulator itself starts a thread of Python for each, and looks at all of them in a loop that never rests.
    """
    from numba.cuda.simulator import kernelapi
    from numba.cuda.simulator.kernel import BlockManager

    kernelapi.FakeCUDAShared.array = _shared_array
    BlockManager.run = _run_block
