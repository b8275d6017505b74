"""Many tasks run on several processes or on a dask cluster: results and failures, in the order of finishing."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from fpsim.display.optional import load
from fpsim.errors import require_integer, shown
from fpsim.runtime.threads import thread_count

Progress = Callable[[float, str], None]
Results: TypeAlias = "Generator[tuple[int, Any], None, None]"
AHEAD = 1000  # tasks that a dask cluster has at once: more than its threads, too few to slow its scheduler
WATCH = 0.5  # seconds between two checks of a worker that its parent process is alive
THREADS = ("FPSIM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Failure:
    """The failure of a task, in place of its result.

    Attributes:
      text: type and message of the exception, or how the worker ended.
      died: True if the worker process ended; False for an exception.
    """

    text: str
    died: bool = False


def run_over(
    tasks: Sequence[Any],
    function: Callable[[Any], Any],
    *,
    workers: int | None = None,
    client: Any = None,
    retries: int = 2,
    progress: Progress | None = None,
) -> Results:
    """Call function(task) for every task, and yield results as they are finished, in any order.

    Workers are separate processes, each with its share of the cores. A worker that dies (killed, out of memory, a crash
    in C) is started again, and its task is tried again. Ctrl-C ends all workers at once, and so does `close()`, which
    `contextlib.closing` calls if the loop is left early.

    Args:
      tasks: the arguments of the function, one per task; anything that cloudpickle can send.
      function: a function, lambda or closure. With one worker it runs in this process.
      workers: number of processes; None is one for each core that this process may use.
      client: a `dask.distributed.Client`, whose cluster computes instead.
      retries: how often a task that ended its worker is tried again. A cluster instead tries as often as its
        scheduler is set to, and then, unless `retries` is 0, once more alone: when a worker dies, dask cannot tell
        which of the worker's tasks killed it.
      progress: called with (share of tasks done, text such as "3 of 10").
    Yields:
      (index of the task, result), or a `Failure` as the result: the function raised, or ended its worker every time.
    Raises:
      TypeError, ValueError: an argument is invalid, or the function cannot be sent to another process.
      ImportError: joblib, or distributed, is needed and not installed.
      RuntimeError: the cluster is gone.

    Example:
      >>> from fpsim.analysis.studies.workers import run_over
      >>> sorted(run_over([3, 4], lambda x: x * x, workers=1))
      [(0, 9), (1, 16)]
      >>> [(index, failed)] = run_over([0], lambda x: 1 / x, workers=1)
      >>> index, failed.text
      (0, 'ZeroDivisionError: division by zero')
    """
    if workers is not None:
        require_integer("workers", workers, 1)
        if client is not None:
            raise ValueError(
                f"workers must be left out where a client is given; got {workers}. The cluster has its own."
            )
    require_integer("retries", retries, 0)
    if client is not None:
        results = _on_cluster(tasks, function, _checked(client), retries)
    elif (workers or thread_count()) == 1:
        results = ((index, _attempt(function, task)) for index, task in enumerate(tasks))
    else:
        results = _on_processes(tasks, function, workers or thread_count(), retries)
    return _reported(results, len(tasks), progress)


def _reported(results: Results, count: int, progress: Progress | None) -> Results:
    """Yield the results unchanged, and call progress(share done, text) after each result unless `progress` is None.

    results: pairs (index of the task, result). count: number of tasks.
    """
    with closing(results):
        for done, result in enumerate(results, 1):
            yield result
            if progress is not None:
                progress(done / count, f"{done:,} of {count:,}")


def _attempt(function: Callable[[Any], Any], task: Any, caught: type[BaseException] = Exception) -> Any:
    """Return function(task); if it raises an Exception, or one of the type `caught`, return a Failure that describes
    that."""
    try:
        return function(task)
    except (Exception, caught) as problem:
        return _failure(problem)


def _failure(problem: BaseException) -> Failure:
    """Return a Failure that describes an exception in one line: its type, and its message if there is one."""
    try:
        text = " ".join(str(problem).split())
    except Exception:  # __str__ may raise anything
        text = ""
    return Failure(f"{type(problem).__name__}: {text}" if text else type(problem).__name__)


# ---- on processes of this machine


def _on_processes(tasks: Sequence[Any], function: Callable[[Any], Any], workers: int, retries: int) -> Results:
    """Call function(task) for each of `tasks` in `workers` processes; yield pairs (index of the task, result or
    Failure), in any order.

    A task whose worker died is tried again `retries` times. Each worker is a pool of one process, so that its death
    identifies its task.
    """
    if not tasks:
        return
    load("joblib", "several workers")
    payload = _pickled(function, "the function")
    workers = min(workers, len(tasks))
    share = str(max(1, thread_count() // max(1, workers)))
    waiting = deque((index, 0) for index in range(len(tasks)))  # (task, number of workers that it ended)
    pools = [_Pool(payload, share) for _ in range(workers)]
    running: dict[Future[bytes], tuple[_Pool, int, int]] = {}
    idle = list(pools)
    try:
        while waiting or running:
            while waiting and idle:
                index, deaths = waiting.popleft()
                try:
                    task = _pickled(tasks[index], "a task")
                except TypeError as problem:
                    yield index, _failure(problem)
                    continue
                pool = idle.pop()
                running[pool.submit(task)] = pool, index, deaths
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                pool, index, deaths = running.pop(future)
                idle.append(pool)
                end = future.exception()
                if end is None:
                    yield index, _loads(future.result())
                    continue
                pool.end()
                if deaths < retries:
                    waiting.appendleft((index, deaths + 1))
                else:
                    yield index, _dead(end, deaths + 1)
    finally:
        for pool in pools:
            pool.end()


class _Pool:
    """One worker process. The first task starts it; after `end` has killed it, the next task starts another.

    payload: the pickled function. threads: number of threads that the process may use, as text for the environment.
    """

    def __init__(self, payload: bytes, threads: str) -> None:
        self._payload = payload
        self._threads = threads
        self._executor: Any = None

    def submit(self, task: bytes) -> Future[bytes]:
        """Submit a pickled task, and return the future of its pickled result."""
        if self._executor is None:
            loky = load("joblib.externals.loky", "several workers")
            self._executor = loky.ProcessPoolExecutor(
                1, initializer=_begin, initargs=(self._payload, os.getpid()), env=dict.fromkeys(THREADS, self._threads)
            )
        with _interrupts_wait():
            future: Future[bytes] = self._executor.submit(_work, task)
        return future

    def end(self) -> None:
        """Kill the worker process, if it runs."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            self._executor = None


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Block SIGINT (Ctrl-C) during the `with` block, in this process and in those started there; no-op on Windows."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _dead(end: BaseException, times: int) -> Failure:
    """Return the Failure of a task that ended `times` workers; end: the last exception, which may name exit codes."""
    codes = re.search(r"exit codes of the workers are \{(.*?)\}", str(end))
    how = codes[1] if codes else type(end).__name__
    often = f", {times} times" if times > 1 else ""
    return Failure(f"the worker process died ({how}){often}", died=True)


def _pickled(value: Any, noun: str) -> bytes:
    """Return an object as bytes from which another process can rebuild it; noun: the object's name in messages, such as
    "a task".

    Raises:
      TypeError: cloudpickle cannot write it.
    """
    pickler = load("cloudpickle", "several workers")
    try:
        data: bytes = pickler.dumps(value)
        return data
    except Exception as problem:  # __reduce__ may raise anything
        raise TypeError(
            f"{noun} must be something that cloudpickle can send to another process; got {shown(value)}: "
            f"{_failure(problem).text}. workers=1 sends nothing."
        ) from problem


def _loads(data: bytes) -> Any:
    """Return the value that a worker sent as bytes, or a Failure if this process cannot unpickle these bytes."""
    import pickle

    try:
        return pickle.loads(data)
    except Exception as problem:
        return Failure(f"the result cannot be read here: {_failure(problem).text}")


# State of a worker process: the function, pickled and unpickled.
_sent: dict[str, Any] = {}


def _begin(payload: bytes, parent: int) -> None:
    """Set up this worker process, which ignores Ctrl-C and ends when the process with the id `parent` ends.

    payload: the pickled function to call.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # Loky replaces workers whose memory grows, with a warning in a thread; warning filters that make this an error stop
    # the pool for ever. A function may keep data between tasks, and a worker that the system kills is started again.
    load("joblib.externals.loky.process_executor", "several workers")._USE_PSUTIL = False
    _sent.clear()
    _sent["payload"] = payload
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """Wait until the parent process, whose id is `parent`, ends, then end this process; on Windows, wait for ever."""
    while os.name != "posix" or os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def _work(task: bytes) -> bytes:
    """Run one pickled task in a worker process, and return its pickled result, or a pickled Failure."""
    import pickle

    try:
        if "function" not in _sent:
            _sent["function"] = pickle.loads(_sent["payload"])
        return _pickled(_attempt(_sent["function"], pickle.loads(task)), "a result")
    except (Exception, SystemExit) as problem:
        return pickle.dumps(_failure(problem))


# ---- on a dask cluster


def _checked(client: Any) -> Any:
    """Return the dask client unchanged after checking it.

    Raises:
      TypeError, ValueError: client is not a dask.distributed.Client, or it is asynchronous.
    """
    distributed = load("distributed", "client=")
    if not isinstance(client, distributed.Client):
        raise TypeError(f"client must be a dask.distributed.Client; got {shown(client)}.")
    if client.asynchronous:
        raise ValueError("client must be synchronous; got one with asynchronous=True. Create it without that.")
    return client


def _on_cluster(tasks: Sequence[Any], function: Callable[[Any], Any], client: Any, retries: int) -> Results:
    """Call function(task) through a dask client; yield pairs (index of the task, result or Failure), in any order.

    When a worker dies, dask cannot tell which of its tasks killed it. Therefore, unless `retries` is 0, all tasks
    whose workers died run once more, one at a time.
    """
    suspects: list[int] = []
    with closing(_submitted(tasks, range(len(tasks)), function, client, AHEAD)) as results:
        for index, result in results:
            if retries and isinstance(result, Failure) and result.died:
                suspects.append(index)
            else:
                yield index, result
    yield from _submitted(tasks, suspects, function, client, 1)


def _submitted(
    tasks: Sequence[Any], indices: Sequence[int], function: Callable[[Any], Any], client: Any, ahead: int
) -> Results:
    """Call function(task) through a dask client for the tasks at `indices`; yield (index, result or Failure).

    Results come as they are finished. `client`: the dask client. ahead: number of tasks that are submitted before the
    first has finished.
    """
    if not indices:
        return
    distributed = load("distributed", "client=")
    waiting = iter(indices)
    running: dict[Any, int] = {}
    finished = distributed.as_completed(loop=client.loop, raise_errors=False)

    def submit(count: int) -> None:
        for index in itertools.islice(waiting, count):
            future = client.submit(_attempt, function, tasks[index], SystemExit, pure=False)
            running[future] = index
            finished.add(future)

    try:
        _require_running(client)
        submit(ahead)
        for futures in finished.batches():
            for future, result in zip(futures, _gathered(client, futures), strict=True):
                yield running.pop(future), result
                future.release()
            submit(len(futures))
    finally:
        if running and client.status == "running":
            client.cancel(list(running), force=True)


def _gathered(client: Any, futures: Sequence[Any]) -> list[Any]:
    """Return the results of finished futures of a dask client in order, with a Failure for each that failed."""
    try:
        if all(future.status == "finished" for future in futures):
            return list(client.gather(futures))
    except Exception:  # one was lost meanwhile
        pass
    return [_result_of(client, future) for future in futures]


def _result_of(client: Any, future: Any) -> Any:
    """Return the result of a dask future, or a Failure; wait if another worker computes the task again.

    Raise a RuntimeError if the client lost its cluster.
    """
    try:
        return future.result()
    except Exception as problem:
        _require_running(client)
        failure = _failure(problem)
        killed = type(problem).__name__ == "KilledWorker"
        return Failure(f"the worker died: {failure.text}", died=True) if killed else failure


def _require_running(client: Any) -> None:
    """Raise a RuntimeError unless the dask client is connected, since a lost cluster is not the failure of a task."""
    if client.status != "running":
        raise RuntimeError(
            f"client must stay connected until the last task; got one that is {client.status!r}. Finished tasks are "
            "kept; call again with another client."
        )
