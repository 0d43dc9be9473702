"""`torch.distributed` over emulated HCAs: a ProcessGroup in Python, one communicator and one thread per group.

Methods carry torch's names, old and new, because torch finds them by name: from Python, and from C++ (the DDP reducer,
functional collectives, compiled graphs) through its override tables.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from fauxrdma.communicator import Communicator, process_statistics
from fauxrdma.errors import CollectiveError, LocalProtocolError, SetupError
from fauxrdma.torch.tensors import arithmetic_for, as_array, reduce_op_name
from fauxrdma.torch.work import CommunicationThread, FauxrdmaWork, Tensors

__all__ = ["FauxrdmaProcessGroup", "create_process_group"]

if TYPE_CHECKING:

    class _ProcessGroup:
        """torch's stubs differ from version to version and from its C++; this is all that is used of the base."""

        def __init__(self, rank: int, size: int) -> None: ...

        def size(self) -> int: ...

else:
    _ProcessGroup = dist.ProcessGroup

SHUTDOWN_S = 30.0
"""How long `shutdown` waits for collectives under way, in wall time."""

_groups: weakref.WeakSet[FauxrdmaProcessGroup] = weakref.WeakSet()


def create_process_group(options: Any) -> FauxrdmaProcessGroup:
    """The group torch asks for. `options` carries store, group_rank, group_size, timeout and group_id.

    Raises SetupError when this process was not started next to an HCA daemon.
    """
    if not os.environ.get("FAUXRDMA_SOCKET"):
        raise SetupError(
            'init_process_group("fauxrdma") found no HCA daemon: FAUXRDMA_SOCKET is not set; start the script with '
            "`fauxrdma run FABRIC -- script.py` or `fauxrdma compare FABRIC FABRIC -- script.py`"
        )
    store = options.store
    # A blocking get of the communication thread must not lock the connection that the caller's thread uses.
    if hasattr(store, "clone"):
        store = store.clone()
        store.set_timeout(options.timeout)  # for peers that never connect
    return FauxrdmaProcessGroup(store, options.group_rank, options.group_size, options.timeout)


class FauxrdmaProcessGroup(_ProcessGroup):
    """A process group whose collectives run over queue pairs, in call order, on a thread of its own.

    `timeout` bounds each collective (wall time). Collectives raise CollectiveError through `Work.wait`; then the group
    is broken and only `destroy_process_group` is left.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._timeout = timeout
        self._sequence = 0
        self._name = ""
        self._description = ""
        self._communicator = Communicator(
            rank, size, store, timeout_s=timeout.total_seconds(), statistics=process_statistics()
        )
        self._thread = CommunicationThread(f"fauxrdma-rank{rank}")
        _groups.add(self)

    # Running.

    def _start(
        self,
        name: str,
        job: Callable[[Communicator], None],
        result: Tensors,
        opts: Any = None,
        source_rank: int = -1,
    ) -> FauxrdmaWork:
        timeout = getattr(opts, "timeout", None)
        seconds = timeout.total_seconds() if timeout is not None else -1.0
        limit = seconds if seconds > 0 else self._timeout.total_seconds()  # -1 ms stands for the default
        communicator = self._communicator
        work = FauxrdmaWork(name, result, source_rank)

        def run() -> None:
            communicator.timeout_s = limit
            job(communicator)

        self._sequence += 1
        self._thread.submit(run, work, synchronous=not getattr(opts, "asyncOp", True))
        return work

    # All-reduce.

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> FauxrdmaWork:
        """Reduce one tensor in place over all ranks."""
        tensor = _only("all_reduce", tensors)
        op = _op_of(opts)
        array, arithmetic = as_array(tensor), arithmetic_for(tensor.dtype)
        return self._start("all_reduce", lambda c: c.all_reduce(array, op, arithmetic=arithmetic), [tensor], opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> FauxrdmaWork:
        """Reduce several tensors of one dtype in place, as if they were one."""
        _same_dtype("all_reduce_coalesced", tensors)
        op, arithmetic = _op_of(opts), arithmetic_for(tensors[0].dtype)
        arrays = [as_array(tensor) for tensor in tensors]

        def job(communicator: Communicator) -> None:
            whole = np.concatenate([array.reshape(-1) for array in arrays])
            communicator.all_reduce(whole, op, arithmetic=arithmetic)
            _scatter_back(whole, arrays)

        return self._start("all_reduce_coalesced", job, list(tensors), opts)

    # Broadcast and barrier.

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> FauxrdmaWork:
        """Replace one tensor by the root's."""
        tensor = _only("broadcast", tensors)
        root = opts.rootRank if opts is not None else 0
        array = as_array(tensor)
        return self._start("broadcast", lambda c: c.broadcast(array, root), [tensor], opts, root)

    def barrier(self, opts: Any = None) -> FauxrdmaWork:
        """Complete when every rank has called it."""
        return self._start("barrier", lambda c: c.barrier(), [], opts)

    # All-gather.

    def allgather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> FauxrdmaWork:
        """Gather every rank's tensor into a list of tensors, one per rank."""
        tensor = _only("all_gather", input_tensors)
        outputs = list(_only("all_gather", output_tensors))
        _check_list("all_gather", outputs, self.size(), tensor)
        source, targets = as_array(tensor), [as_array(output) for output in outputs]

        def job(communicator: Communicator) -> None:
            whole = np.empty(source.size * len(targets), source.dtype)
            communicator.all_gather(whole, source)
            _scatter_back(whole, targets)

        return self._start("all_gather", job, [outputs], opts)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> FauxrdmaWork:
        """Gather every rank's tensor into one large tensor."""
        _same_dtype("all_gather_into_tensor", [output, tensor])
        source, target = as_array(tensor), as_array(output)
        return self._start("all_gather_into_tensor", lambda c: c.all_gather(target, source), [output], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> FauxrdmaWork:
        """Several all_gather_into_tensor in one."""
        pairs = [(as_array(o), as_array(i)) for o, i in zip(outputs, inputs, strict=True)]

        def job(communicator: Communicator) -> None:
            for target, source in pairs:
                communicator.all_gather(target, source)

        return self._start("all_gather_into_tensor_coalesced", job, list(outputs), opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> FauxrdmaWork:
        """Several all_gathers in one: `output_lists[rank][k]` receives `inputs[k]` of that rank."""
        targets = [[as_array(tensor) for tensor in outputs] for outputs in output_lists]
        sources = [as_array(tensor) for tensor in inputs]
        if len(targets) != self.size() or any(len(row) != len(sources) for row in targets):
            raise LocalProtocolError(f"all_gather_coalesced needs {self.size()} lists of {len(sources)} output tensors")

        def job(communicator: Communicator) -> None:
            for k, source in enumerate(sources):
                whole = np.empty(source.size * len(targets), source.dtype)
                communicator.all_gather(whole, source)
                _scatter_back(whole, [row[k] for row in targets])

        return self._start("all_gather_coalesced", job, [list(outputs) for outputs in output_lists], opts)

    # Reduce-scatter.

    def reduce_scatter(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> FauxrdmaWork:
        """Reduce a list of tensors, one per rank, and keep this rank's."""
        output = _only("reduce_scatter", output_tensors)
        inputs = list(_only("reduce_scatter", input_tensors))
        _check_list("reduce_scatter", inputs, self.size(), output)
        op, arithmetic = _op_of(opts), arithmetic_for(output.dtype)
        sources, target = [as_array(tensor) for tensor in inputs], as_array(output)

        def job(communicator: Communicator) -> None:
            whole = np.concatenate([source.reshape(-1) for source in sources])
            communicator.reduce_scatter(target, whole, op, arithmetic=arithmetic)

        return self._start("reduce_scatter", job, [output], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> FauxrdmaWork:
        """Reduce one large tensor and keep this rank's part."""
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> FauxrdmaWork:
        """Several reduce_scatter_tensor in one."""
        op = _op_of(opts)
        triples = []
        for output, tensor in zip(outputs, inputs, strict=True):
            _same_dtype("reduce_scatter_tensor", [output, tensor])
            triples.append((as_array(output), as_array(tensor), arithmetic_for(output.dtype)))

        def job(communicator: Communicator) -> None:
            for target, source, arithmetic in triples:
                communicator.reduce_scatter(target, source, op, arithmetic=arithmetic)

        return self._start("reduce_scatter_tensor", job, list(outputs), opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # Not built yet: each says what to use instead.

    def alltoall_base(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("all_to_all_single", "all_gather_into_tensor and slice the result")

    all_to_all_single = alltoall_base

    def alltoall(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("all_to_all", "all_gather and pick the parts")

    def send(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("send", "broadcast in a group of the two ranks")

    def recv(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("recv", "broadcast in a group of the two ranks")

    def recv_anysource(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("recv from any source", "broadcast in a group of the two ranks")

    def reduce(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("reduce", "all_reduce")

    def gather(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("gather", "all_gather (for objects: all_gather_object)")

    def scatter(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("scatter", "broadcast the whole and slice it (for objects: broadcast_object_list)")

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> FauxrdmaWork:
        """Not built yet."""
        raise _not_built("monitored_barrier", "barrier, whose error names the rank waited for")

    # About the group.

    def getBackendName(self) -> str:
        """The name DDP's logger and `get_backend` show."""
        return "fauxrdma"

    # The C++ base keeps name and description in its inner backends, of which this group has none.

    def getGroupName(self) -> str:
        """The name torch registers the group under."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by torch once the group exists."""
        self._name = name

    def getGroupDesc(self) -> str:
        """The description given to `new_group`."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Called by torch once the group exists."""
        self._description = description

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of collectives started from now on."""
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # The end.

    def shutdown(self) -> None:
        """Finish what is under way, then close the communicator and write the statistics. Idempotent."""
        if self._thread.stop(SHUTDOWN_S):
            self._communicator.close()
        process_statistics().write_where_asked()

    def abort(self) -> None:
        """End without waiting for collectives under way: they fail at their peers, too."""
        self._communicator.timeout_s = 0.0
        if self._thread.stop(2.0):
            self._communicator.close()


def _not_built(what: str, instead: str) -> NotImplementedError:
    return NotImplementedError(f'the "fauxrdma" backend has no {what} yet: use {instead}')


def _only(name: str, items: Any) -> Any:
    if isinstance(items, torch.Tensor):  # pg.allreduce(tensor), without a list, is torch's short form
        return items
    if len(items) != 1:
        raise LocalProtocolError(f"{name} takes one tensor per process, got {len(items)}")
    return items[0]


def _op_of(opts: Any) -> str:
    return "sum" if opts is None else reduce_op_name(getattr(opts, "reduceOp", opts))


def _same_dtype(name: str, tensors: Sequence[torch.Tensor]) -> None:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise LocalProtocolError(f"{name} needs tensors of one dtype, got {sorted(map(str, dtypes)) or 'no tensors'}")


def _check_list(name: str, tensors: Sequence[torch.Tensor], size: int, like: torch.Tensor) -> None:
    if len(tensors) != size:
        raise LocalProtocolError(f"{name} needs a list of {size} tensors, one per rank, got {len(tensors)}")
    for number, tensor in enumerate(tensors):
        if tensor.numel() != like.numel() or tensor.dtype != like.dtype:
            raise LocalProtocolError(
                f"{name}: tensor {number} of the list has {tensor.numel()} elements of {tensor.dtype}, but "
                f"{like.numel()} of {like.dtype} are needed on every rank"
            )


def _scatter_back(whole: Any, arrays: Sequence[Any]) -> None:
    """Copy consecutive parts of `whole` into `arrays`, whatever their strides."""
    start = 0
    for array in arrays:
        array[...] = whole[start : start + array.size].reshape(array.shape)
        start += array.size


def _close_all() -> None:
    """At exit: a script that never called destroy_process_group still leaves nothing behind."""
    for group in list(_groups):
        try:
            group.shutdown()
        except CollectiveError:
            continue


atexit.register(_close_all)
