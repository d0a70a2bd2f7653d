"""Runs that do not wait: queues and pending results."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from stitchwork.errors import ExecutionError
from stitchwork.runtime.tensor_data import TensorData


class Pending:
    """A run that was started. `result()` waits for it and gives what `run` would have; `done()` does not wait."""

    def __init__(self, future: Future[list[TensorData]]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> list[TensorData]:
        """The results. timeout: seconds to wait at most. Raises what the run raised, and TimeoutError."""
        return self._future.result(timeout)

    def done(self) -> bool:
        return self._future.done()

    def add_done_callback(self, call: Callable[[Pending], Any]) -> None:
        """Call `call(self)` once the run is over, or now where it is."""
        self._future.add_done_callback(lambda _f: call(self))


class CommandQueue:
    """Runs what is submitted to it in order, one at a time, beside the caller. Queues are independent of each other."""

    def __init__(self, name: str = "queue") -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"stitchwork-{name}")
        self._closed = False

    def submit(self, call: Callable[[], list[TensorData]]) -> Pending:
        """Add a run. Raises ExecutionError once the queue is closed."""
        if self._closed:
            raise ExecutionError("queue", "the queue is closed")
        return Pending(self._executor.submit(call))

    def wait(self) -> None:
        """Return once everything submitted so far is done."""
        self._executor.submit(lambda: None).result()

    def close(self) -> None:
        """Finish what was submitted and take no more."""
        self._closed = True
        self._executor.shutdown()

    def __enter__(self) -> CommandQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
