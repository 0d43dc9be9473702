"""`fauxrdma.lab(...)`: a fabric for notebooks and scripts, in a ``with`` or an ``async with``.

::

    with fauxrdma.lab("seed-rail8", nodes=2) as lab:
        print(lab.ranks(lambda communicator: communicator.rank))
        print(lab.run("examples/train_digits.py").values)
        lab                                                 # in a notebook: the topology, coloured by load

    async with fauxrdma.lab("seed-rail8", nodes=2) as lab:  # the same, each call awaited
        result = await lab.run("examples/train_digits.py")
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from fauxrdma.communicator import Communicator
from fauxrdma.errors import CheckFailed, SetupError
from fauxrdma.lab.job import run_and_report
from fauxrdma.lab.launcher import RankLine
from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.rank_threads import run_on_ranks
from fauxrdma.report.building import link_loads
from fauxrdma.report.results import RunResult
from fauxrdma.report.topology_svg import topology_svg
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.placement import Placement
from fauxrdma.verbs import Context
from fauxrdma.wire.fabric_messages import FabricReport, PathAnswer, SweepReport
from fauxrdma.wire.fault_messages import FaultList

__all__ = ["AsyncLab", "Lab", "lab"]

T = TypeVar("T")


class Lab(LocalLab):
    """A running fabric and what one does with it by hand. A context manager, synchronous; all of LocalLab is there."""

    _own_thread: threading.Thread | None = None

    @property
    def may_tie_children(self) -> bool:
        """As in LocalLab: a thread that lives as long as the lab will do, too."""
        return super().may_tie_children or threading.current_thread() is self._own_thread

    def __enter__(self) -> Lab:
        super().__enter__()
        return self

    def run(
        self,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[RankLine], None] | None = None,
        on_tick: Callable[[], None] | None = None,
    ) -> RunResult:
        """Run a script (or ``-m module``, or any program) with its arguments once per rank, as `fauxrdma run` does.

        The result is of everything since the last run or report(reset=True): counters start anew. `environment` is
        added to the ranks', `on_line` gets every line they print, `on_tick` is called several times a second; what it
        raises ends the job. Raises ConfigError for a script that is not there,
        CheckFailed for a rank that failed, FabricUnhealthy when a daemon died.
        """
        self.report(reset=True)
        return run_and_report(self, list(map(str, command)), environment=environment, on_line=on_line, on_tick=on_tick)

    def ranks(self, work: Callable[[Communicator], T], **options: Any) -> list[T]:
        """Call `work(communicator)` once per rank, all at the same time, as threads of this process; what each
        returned, by rank. `options` are Communicator's. Raises what `work` raised first; ConfigError in virtual time.
        """
        return run_on_ranks(self, work, **options)

    def context(self, node: int = 0, hca: int = 1) -> Context:
        """A verbs context on an HCA (numbered from 1) of a node. Close it, or use it as a context manager. Raises
        VerbsError for one that is not there."""
        return Context(f"hca{hca}", socket=str(self.socket_path(node)))

    def drawing(self) -> str:
        """The topology as SVG, its links coloured by what they have carried since the last reset."""
        return topology_svg(self.topology, link_loads(self.report()), placement=self.placement)

    def _repr_html_(self) -> str:
        return self.drawing() if self._directory is not None else f"<p>{self!r} is not running</p>"


class AsyncLab:
    """A Lab whose calls are awaited: they run one after the other in a thread of the lab's own, so the event loop goes
    on meanwhile. An async context manager."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._thread: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> AsyncLab:
        self._thread = ThreadPoolExecutor(1, "fauxrdma-lab", self._enter_thread)
        try:
            await self._call(self._lab.__enter__)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    def _enter_thread(self) -> None:
        self._lab._own_thread = threading.current_thread()

    async def _leave(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        # Also when the task is cancelled: no process stays behind.
        await asyncio.shield(asyncio.wrap_future(thread.submit(self._lab.close)))
        thread.shutdown(wait=False)

    async def _call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        if self._thread is None:
            raise SetupError("the lab is not running: use it as `async with fauxrdma.lab(...) as lab:`")
        return await asyncio.wrap_future(self._thread.submit(function, *arguments, **options))

    # What the lab consists of.

    @property
    def topology(self) -> Topology:
        """The fabric as a graph."""
        return self._lab.topology

    @property
    def placement(self) -> Placement:
        """Which rank sits where."""
        return self._lab.placement

    @property
    def world_size(self) -> int:
        """Ranks of a job."""
        return self._lab.world_size

    @property
    def dilation(self) -> float:
        """Nanoseconds of wall time that one of fabric time lasts."""
        return self._lab.dilation

    def context(self, node: int = 0, hca: int = 1) -> Context:
        """As in Lab: contexts have `await` forms of their own."""
        return self._lab.context(node, hca)

    # What is done with it: as in Lab, awaited.

    async def run(
        self,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[RankLine], None] | None = None,
    ) -> RunResult:
        """As `Lab.run`; `on_line` is called in the lab's thread. A task that is cancelled ends the job."""
        cancelled = threading.Event()

        def check() -> None:
            if cancelled.is_set():
                raise CheckFailed("the task that waited for the job was cancelled")

        try:
            return await self._call(self._lab.run, *command, environment=environment, on_line=on_line, on_tick=check)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def ranks(self, work: Callable[[Communicator], T], **options: Any) -> list[T]:
        """As `Lab.ranks`. Threads cannot be ended from outside: a task that is cancelled leaves them to their end."""
        return await self._call(self._lab.ranks, work, **options)

    async def report(self, reset: bool = False) -> FabricReport:
        """As `LocalLab.report`."""
        return await self._call(self._lab.report, reset)

    async def link_down(self, link: str) -> str:
        """As `LocalLab.link_down`."""
        return await self._call(self._lab.link_down, link)

    async def link_up(self, link: str) -> str:
        """As `LocalLab.link_up`."""
        return await self._call(self._lab.link_up, link)

    async def inject(self, kind: str, target: str = "", **fields: Any) -> int:
        """As `LocalLab.inject`."""
        return await self._call(self._lab.inject, kind, target, **fields)

    async def clear_fault(self, number: int = 0) -> list[int]:
        """As `LocalLab.clear_fault`."""
        return await self._call(self._lab.clear_fault, number)

    async def faults(self) -> FaultList:
        """As `LocalLab.faults`."""
        return await self._call(self._lab.faults)

    async def swept(self, timeout_s: float = 60.0) -> SweepReport:
        """As `LocalLab.swept`."""
        return await self._call(self._lab.swept, timeout_s)

    async def path(self, source: str, target: str, qp_num: int = 0) -> PathAnswer:
        """As `LocalLab.path`."""
        return await self._call(self._lab.path, source, target, qp_num)

    async def drawing(self) -> str:
        """As `Lab.drawing`."""
        return await self._call(self._lab.drawing)


class _Offer:
    """A lab that is described and not yet started: `with` starts a Lab, `async with` an AsyncLab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._asynchronous: AsyncLab | None = None

    def __enter__(self) -> Lab:
        return self._lab.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lab.__exit__(kind, error, trace)

    async def __aenter__(self) -> AsyncLab:
        self._asynchronous = AsyncLab(self._lab)
        return await self._asynchronous.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._asynchronous is not None
        await self._asynchronous.__aexit__(kind, error, trace)


def lab(
    fabric: str,
    nodes: int = 2,
    gpus: int = 1,
    *,
    clock: str = "paced",
    dilation: str | float = "auto",
    seed: int = 0,
    profile: str | None = None,
    routing: str | None = None,
    placement: str = "block",
    on_nodes: Sequence[int] | None = None,
    log_dir: str | Path | None = None,
) -> _Offer:
    """A fabric to be used in a ``with`` (gives a `Lab`) or an ``async with`` (gives an `AsyncLab`).

    `fabric` is a preset with its options or a YAML file; `gpus` of each of `nodes` nodes take part, one rank each. The
    other options are LocalLab's. Raises ConfigError at once for what cannot be; nothing is started before the ``with``.
    """
    return _Offer(
        Lab(
            fabric,
            nodes,
            gpus,
            clock=clock,
            dilation=dilation,
            seed=seed,
            profile=profile,
            routing=routing,
            placement=placement,
            on_nodes=on_nodes,
            log_dir=log_dir,
        )
    )
