"""The collectives under torch's names, old and new: torch finds them by name, from Python and from C++ (the DDP
reducer, functional collectives, compiled graphs) through its override tables.

Every call checks its arguments first and raises LocalProtocolError for what makes no sense; what goes wrong later is
raised by the Work it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fauxrdma.communicator import Communicator
from fauxrdma.errors import LocalProtocolError
from fauxrdma.torch.checks import check_list, check_pair, only, rows, same_dtype
from fauxrdma.torch.group import Group, scatter_back
from fauxrdma.torch.reductions import reduction_for
from fauxrdma.torch.tensors import as_array
from fauxrdma.torch.work import FauxrdmaWork

__all__ = ["CollectiveCalls"]

Tensors = Sequence[torch.Tensor]


class CollectiveCalls(Group):
    """Collectives of a process group."""

    # All-reduce and reduce.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Reduce one tensor in place over all ranks."""
        tensor = only("all_reduce", tensors)
        reduction = reduction_for(opts, tensor.dtype)
        array = as_array(tensor)

        def job(communicator: Communicator) -> None:
            reduction.scale(tensor)
            communicator.all_reduce(array, reduction.op, arithmetic=reduction.arithmetic)

        return self._start("all_reduce", job, [tensor], opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Reduce several tensors of one dtype in place, as if they were one."""
        same_dtype("all_reduce_coalesced", tensors)
        reduction = reduction_for(opts, tensors[0].dtype)
        arrays = [as_array(tensor) for tensor in tensors]

        def job(communicator: Communicator) -> None:
            whole = np.concatenate([reduction.scaled(tensor).reshape(-1) for tensor in tensors])
            communicator.all_reduce(whole, reduction.op, arithmetic=reduction.arithmetic)
            scatter_back(whole, arrays)

        return self._start("all_reduce_coalesced", job, list(tensors), opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Reduce one tensor over all ranks, in place on the root; the others' stay as they are."""
        tensor = only("reduce", tensors)
        reduction = reduction_for(opts, tensor.dtype)
        root = _root(self, "reduce", opts)
        as_array(tensor)  # refuses now what cannot be moved

        def job(communicator: Communicator) -> None:
            mine = reduction.scale(tensor) if communicator.rank == root else reduction.scaled(tensor)
            communicator.reduce(mine, root, reduction.op, arithmetic=reduction.arithmetic)

        return self._start("reduce", job, [tensor], opts, root)

    # Broadcast and barriers.

    def broadcast(self, tensors: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Replace one tensor by the root's."""
        tensor = only("broadcast", tensors)
        root = _root(self, "broadcast", opts)
        array = as_array(tensor)
        return self._start("broadcast", lambda c: c.broadcast(array, root), [tensor], opts, root)

    def barrier(self, opts: Any = None) -> FauxrdmaWork:
        """Complete when every rank has called it."""
        return self._start("barrier", lambda c: c.barrier(), [], opts)

    # All-gather.

    def allgather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Gather every rank's tensor into a list of tensors, one per rank. Sizes may differ from rank to rank when
        the lists say so on all ranks."""
        tensor = only("all_gather", input_tensors)
        outputs = list(only("all_gather", output_tensors))
        counts = check_list("all_gather", outputs, self.size(), tensor, self.rank())
        source, targets = as_array(tensor), [as_array(output) for output in outputs]

        def job(communicator: Communicator) -> None:
            whole = np.empty(sum(counts), source.dtype)
            communicator.all_gather(whole, source, counts=counts)
            scatter_back(whole, targets)

        return self._start("all_gather", job, [outputs], opts)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> FauxrdmaWork:
        """Gather every rank's tensor into one large tensor."""
        check_pair("all_gather_into_tensor", output, tensor, self.size())
        source, target = as_array(tensor), as_array(output)
        return self._start("all_gather_into_tensor", lambda c: c.all_gather(target, source), [output], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Several all_gather_into_tensor in one."""
        _same_number("all_gather_into_tensor_coalesced", outputs, inputs)
        for output, tensor in zip(outputs, inputs, strict=True):
            check_pair("all_gather_into_tensor_coalesced", output, tensor, self.size())
        pairs = [(as_array(o), as_array(i)) for o, i in zip(outputs, inputs, strict=True)]

        def job(communicator: Communicator) -> None:
            for target, source in pairs:
                communicator.all_gather(target, source)

        return self._start("all_gather_into_tensor_coalesced", job, list(outputs), opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Several all_gathers in one: `output_lists[rank][k]` receives `inputs[k]` of that rank."""
        targets = [[as_array(tensor) for tensor in outputs] for outputs in output_lists]
        sources = [as_array(tensor) for tensor in inputs]
        if len(targets) != self.size() or any(len(row) != len(sources) for row in targets):
            raise LocalProtocolError(f"all_gather_coalesced needs {self.size()} lists of {len(sources)} output tensors")
        for k, tensor in enumerate(inputs):
            check_list("all_gather_coalesced", [row[k] for row in output_lists], self.size(), tensor, None)

        def job(communicator: Communicator) -> None:
            for k, source in enumerate(sources):
                whole = np.empty(source.size * len(targets), source.dtype)
                communicator.all_gather(whole, source)
                scatter_back(whole, [row[k] for row in targets])

        return self._start("all_gather_coalesced", job, [list(outputs) for outputs in output_lists], opts)

    # Reduce-scatter.

    def reduce_scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any = None) -> FauxrdmaWork:
        """Reduce a list of tensors, one per rank, and keep this rank's. Sizes may differ from rank to rank."""
        output = only("reduce_scatter", outputs)
        inputs = list(only("reduce_scatter", input_lists))
        counts = check_list("reduce_scatter", inputs, self.size(), output, self.rank())
        reduction = reduction_for(opts, output.dtype)
        target = as_array(output)

        def job(communicator: Communicator) -> None:
            whole = np.concatenate([reduction.scaled(tensor).reshape(-1) for tensor in inputs])
            communicator.reduce_scatter(target, whole, reduction.op, counts=counts, arithmetic=reduction.arithmetic)

        return self._start("reduce_scatter", job, [output], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> FauxrdmaWork:
        """Reduce one large tensor and keep this rank's part."""
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Several reduce_scatter_tensor in one."""
        _same_number("reduce_scatter_tensor", outputs, inputs)
        jobs = []
        for output, tensor in zip(outputs, inputs, strict=True):
            check_pair("reduce_scatter_tensor", tensor, output, self.size())
            jobs.append((as_array(output), tensor, reduction_for(opts, output.dtype)))

        def job(communicator: Communicator) -> None:
            for target, tensor, reduction in jobs:
                source = reduction.scaled(tensor)
                communicator.reduce_scatter(target, source, reduction.op, arithmetic=reduction.arithmetic)

        return self._start("reduce_scatter_tensor", job, list(outputs), opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # Gather and scatter.

    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Gather every rank's tensor into a list of tensors on the root."""
        tensor = only("gather", inputs)
        root = _root(self, "gather", opts)
        outputs = list(only("gather", output_lists)) if self.rank() == root else []
        if self.rank() == root:
            check_list("gather", outputs, self.size(), tensor, None)
        source, targets = as_array(tensor), [as_array(output) for output in outputs]

        def job(communicator: Communicator) -> None:
            whole = np.empty(source.size * len(targets), source.dtype) if targets else None
            communicator.gather(whole, source, root)
            if whole is not None:
                scatter_back(whole, targets)

        return self._start("gather", job, [outputs], opts, root)

    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any = None) -> FauxrdmaWork:
        """Give every rank its tensor of the root's list."""
        output = only("scatter", outputs)
        root = _root(self, "scatter", opts)
        inputs = list(only("scatter", input_lists)) if self.rank() == root else []
        if self.rank() == root:
            check_list("scatter", inputs, self.size(), output, None)
        target, sources = as_array(output), [as_array(tensor) for tensor in inputs]

        def job(communicator: Communicator) -> None:
            whole = np.concatenate([source.reshape(-1) for source in sources]) if sources else None
            communicator.scatter(target, whole, root)

        return self._start("scatter", job, [output], opts, root)

    # All-to-all.

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> FauxrdmaWork:
        """Send rows of one tensor to each rank, and get rows of another from each; evenly when no splits are given."""
        name = "all_to_all_single"
        same_dtype(name, [output, tensor])
        even = not output_split_sizes and not input_split_sizes
        receives = rows(name, "output", output, output_split_sizes, self.size())
        sends = rows(name, "input", tensor, input_split_sizes, self.size())
        source, target = as_array(tensor), as_array(output)
        if even and source.size != target.size:
            raise LocalProtocolError(f"{name}: input and output differ in size, {source.size} and {target.size}")

        def job(communicator: Communicator) -> None:
            if even:
                communicator.all_to_all(target, source)
            else:
                communicator.all_to_all_uneven(target, source, sends, receives)

        return self._start(name, job, [output], opts)

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> FauxrdmaWork:
        """Send one tensor to each rank, and get one from each; all may be of different sizes."""
        same_dtype("all_to_all", [*outputs, *inputs])
        for what, tensors in (("output", outputs), ("input", inputs)):
            if len(tensors) != self.size():
                raise LocalProtocolError(
                    f"all_to_all needs {self.size()} {what} tensors, one per rank, got {len(tensors)}"
                )
        targets, sources = [as_array(t) for t in outputs], [as_array(t) for t in inputs]

        def job(communicator: Communicator) -> None:
            source = np.concatenate([array.reshape(-1) for array in sources])
            target = np.empty(sum(array.size for array in targets), source.dtype)
            communicator.all_to_all_uneven(target, source, [a.size for a in sources], [a.size for a in targets])
            scatter_back(target, targets)

        return self._start("all_to_all", job, list(outputs), opts)


def _root(group: Group, name: str, opts: Any) -> int:
    root = int(opts.rootRank) if opts is not None else 0
    if not 0 <= root < group.size():
        raise LocalProtocolError(f"{name}: root {root} is not a rank of this group of {group.size()}")
    return root


def _same_number(name: str, outputs: Tensors, inputs: Tensors) -> None:
    if len(outputs) != len(inputs):
        raise LocalProtocolError(f"{name} needs as many outputs as inputs, got {len(outputs)} and {len(inputs)}")
