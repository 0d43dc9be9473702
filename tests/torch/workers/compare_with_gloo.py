"""One rank: runs collectives over gloo and over fauxrdma in one process and prints what differs, as JSON lines.

Every check yields a name; a line {"check": name, "ok": bool, "note": text} is printed for each, and the exit code is 1
when any failed.
"""

from __future__ import annotations

import itertools
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

OPS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
SIZES = (0, 1, 5, 1000, 300_001)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def make(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(count, generator=generator) + 0.5
    return (values * 3).to(dtype)


def all_reduces(fabric: dist.ProcessGroup) -> Iterator[tuple[str, Callable[[], bool]]]:
    rank = dist.get_rank()
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
    for dtype, (name, op), count in itertools.product(dtypes, OPS.items(), SIZES):

        def check(dtype: torch.dtype = dtype, op: dist.ReduceOp = op, count: int = count) -> bool:
            mine, theirs = make(count, dtype, rank), make(count, dtype, rank)
            dist.all_reduce(mine, op, group=fabric)
            if count:
                dist.all_reduce(theirs, op)
            return same_bits(mine, theirs)

        yield f"all_reduce {dtype} {name} {count}", check


def others(fabric: dist.ProcessGroup) -> Iterator[tuple[str, Callable[[], bool]]]:
    rank, n = dist.get_rank(), dist.get_world_size()

    def broadcast() -> bool:
        for root in range(n):
            mine, theirs = make(70_000, torch.float32, rank), make(70_000, torch.float32, rank)
            dist.broadcast(mine, root, group=fabric)
            dist.broadcast(theirs, root)
            if not same_bits(mine, theirs):
                return False
        return True

    def all_gather() -> bool:
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
            tensor = make(501, torch.float32, rank).to(dtype).reshape(3, 167)
            mine = [torch.zeros_like(tensor) for _ in range(n)]
            theirs = [torch.zeros_like(tensor) for _ in range(n)]
            dist.all_gather(mine, tensor, group=fabric)
            dist.all_gather(theirs, tensor)
            if not all(same_bits(a, b) for a, b in zip(mine, theirs, strict=True)):
                return False
        return True

    def all_gather_into_tensor() -> bool:
        tensor = make(4000, torch.float64, rank)
        mine, theirs = (torch.zeros(n * 4000, dtype=torch.float64) for _ in range(2))
        dist.all_gather_into_tensor(mine, tensor, group=fabric)
        dist.all_gather_into_tensor(theirs, tensor)
        return same_bits(mine, theirs)

    def reduce_scatter() -> bool:
        inputs = [make(333, torch.int64, 10 * rank + k) for k in range(n)]
        mine = torch.zeros(333, dtype=torch.int64)
        dist.reduce_scatter(mine, inputs, group=fabric)
        return bool((mine == sum(make(333, torch.int64, 10 * r + rank) for r in range(n))).all())

    def reduce_scatter_tensor() -> bool:
        whole = make(n * 2500, torch.float32, rank)
        mine = torch.zeros(2500)
        dist.reduce_scatter_tensor(mine, whole, group=fabric)
        parts = [make(n * 2500, torch.float32, r)[rank * 2500 : (rank + 1) * 2500] for r in range(n)]
        expected = parts[(rank - 1) % n]
        for k in range(2, n + 1):
            expected = parts[(rank - k) % n] + expected
        return same_bits(mine, expected)

    def averages() -> bool:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            mine, total = make(1000, dtype, rank), make(1000, dtype, rank)
            dist.all_reduce(mine, dist.ReduceOp.AVG, group=fabric)
            dist.all_reduce(total)
            if not same_bits(mine, total / n):
                return False
        whole, mine = torch.full((n * 3,), float(rank)), torch.zeros(3)
        dist.reduce_scatter_tensor(mine, whole, dist.ReduceOp.AVG, group=fabric)  # gloo silently sums here
        return bool((mine == (n - 1) / 2).all())

    def not_contiguous() -> bool:
        base = make(600, torch.float32, rank).reshape(20, 30)
        columns, expected = base.clone().t(), base.clone().t().contiguous()
        dist.all_reduce(columns, group=fabric)  # gloo silently gets this wrong
        dist.all_reduce(expected)
        sliced, window = base.clone(), base[:, 3:17].contiguous()
        dist.all_reduce(sliced[:, 3:17], group=fabric)
        dist.all_reduce(window)
        untouched = torch.equal(sliced[:, :3], base[:, :3]) and torch.equal(sliced[:, 17:], base[:, 17:])
        return torch.equal(columns, expected) and torch.equal(sliced[:, 3:17], window) and untouched

    def coalesced() -> bool:
        shapes = ((3, 5), (1,), (0,), (70, 100), (17,))
        mine = [make(torch.Size(s).numel(), torch.float32, rank).reshape(s) for s in shapes]
        theirs = [t.clone() for t in mine]
        with torch.no_grad():
            dist.all_reduce_coalesced(mine, group=fabric)
            dist.all_reduce_coalesced(theirs)
        return all(same_bits(a, b) for a, b in zip(mine, theirs, strict=True))

    def short_forms() -> bool:
        tensor = torch.full((3,), float(rank))
        fabric.allreduce(tensor, dist.ReduceOp.MAX).wait()
        listed = torch.full((3,), float(rank))
        fabric.allreduce([listed]).wait()
        return bool((tensor == n - 1).all()) and bool((listed == n * (n - 1) / 2).all())

    def objects() -> bool:
        gathered: list[object] = [None] * n
        dist.all_gather_object(gathered, {"rank": rank}, group=fabric)
        thing = [f"from {rank}"]
        dist.broadcast_object_list(thing, n - 1, group=fabric)
        return gathered == [{"rank": r} for r in range(n)] and thing == [f"from {n - 1}"]

    def async_in_order() -> bool:
        tensors = [make(20_000, torch.float32, 100 * rank + k) for k in range(8)]
        expected = [t.clone() for t in tensors]
        works = [dist.all_reduce(t, group=fabric, async_op=True) for t in tensors]
        for t in expected:
            dist.all_reduce(t)
        for work in reversed(works):
            work.wait()
        return all(w.is_completed() and w.is_success() for w in works) and all(
            same_bits(a, b) for a, b in zip(tensors, expected, strict=True)
        )

    def callbacks_may_communicate() -> bool:
        tensor = torch.full((100,), float(rank + 1))

        def again(future: torch.futures.Future) -> torch.Tensor:
            value = future.value()[0]
            dist.all_reduce(value, group=fabric)  # waits inside the callback
            return value

        result = dist.all_reduce(tensor, group=fabric, async_op=True).get_future().then(again).wait()
        total = n * (n + 1) / 2
        return bool((result == total * n).all())

    def functional() -> bool:
        import torch.distributed._functional_collectives as funcol

        tensor = torch.full((10,), float(rank + 1))
        reduced = funcol.all_reduce(tensor, "sum", fabric) + 0
        gathered = funcol.all_gather_tensor(tensor, 0, fabric) + 0
        scattered = funcol.reduce_scatter_tensor(gathered, "sum", 0, fabric) + 0
        return (
            bool((reduced == n * (n + 1) / 2).all())
            and gathered.numel() == 10 * n
            and bool((scattered == n * (rank + 1)).all())
        )

    def reduce() -> bool:
        well = []
        for root, dtype in itertools.product(range(n), (torch.float32, torch.bfloat16, torch.int64)):
            mine, theirs = (make(30_001, dtype, rank) for _ in range(2))
            dist.reduce(mine, root, group=fabric)
            dist.reduce(theirs, root)
            if rank == root:  # another order than gloo's
                rtol = 2e-2 if dtype == torch.bfloat16 else 1e-6
                well.append(torch.allclose(mine.double(), theirs.double(), rtol=rtol))
            else:
                well.append(same_bits(mine, make(30_001, dtype, rank)))
        return all(well)

    def gather_and_scatter() -> bool:
        well = []
        for root, dtype in itertools.product(range(n), (torch.float32, torch.bfloat16, torch.bool)):
            tensor = make(600, torch.float32, rank).to(dtype).reshape(20, 30).t()  # not contiguous
            got = [torch.zeros(30, 20, dtype=dtype) for _ in range(n)] if rank == root else None
            dist.gather(tensor, got, root, group=fabric)
            for r, part in enumerate(got or ()):
                well.append(same_bits(part, make(600, torch.float32, r).to(dtype).reshape(20, 30).t()))
            mine, theirs = torch.zeros(7, dtype=dtype), torch.zeros(7, dtype=dtype)
            parts = [make(7, torch.float32, r).to(dtype) for r in range(n)] if rank == root else None
            dist.scatter(mine, parts, root, group=fabric)
            dist.scatter(theirs, parts, root)
            well.append(same_bits(mine, theirs))
        return all(well)

    def all_to_all() -> bool:
        sends = [3 * rank + b for b in range(n)]
        receives = [3 * a + rank for a in range(n)]
        tensor = make(sum(sends) * 4, torch.float32, rank).reshape(-1, 4)
        mine, theirs = (torch.zeros(sum(receives), 4) for _ in range(2))
        dist.all_to_all_single(mine, tensor, receives, sends, group=fabric)
        dist.all_to_all_single(theirs, tensor, receives, sends)
        listed = [torch.zeros(count, 4) for count in receives]
        dist.all_to_all(listed, list(tensor.split(sends)), group=fabric)  # gloo has none
        even, theirs_even = torch.zeros(n * 5), torch.zeros(n * 5)
        dist.all_to_all_single(even, make(n * 5, torch.float32, rank), group=fabric)
        dist.all_to_all_single(theirs_even, make(n * 5, torch.float32, rank))
        large = torch.zeros(n * 1_500_000)
        dist.all_to_all_single(large, torch.arange(n * 1_500_000, dtype=torch.float32), group=fabric)
        block = torch.arange(rank * 1_500_000, (rank + 1) * 1_500_000, dtype=torch.float32)
        return (
            same_bits(mine, theirs)
            and same_bits(torch.cat(listed), theirs)
            and same_bits(even, theirs_even)
            and torch.equal(large, block.repeat(n))
        )

    def bits_of_integers() -> bool:
        well = []
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            for dtype in (torch.int64, torch.uint8):
                mine, theirs = (make(1000, torch.float32, rank).mul(40).to(dtype) for _ in range(2))
                dist.all_reduce(mine, op, group=fabric)
                dist.all_reduce(theirs, op)
                well.append(same_bits(mine, theirs))
            short = torch.full((5,), 1 << rank, dtype=torch.int16)  # gloo has none
            dist.all_reduce(short, op, group=fabric)
            well.append(bool((short == (0 if op == dist.ReduceOp.BAND else (1 << n) - 1)).all()))
        return all(well)

    def integer_averages_and_premultiplied_sums() -> bool:
        mean = torch.tensor([rank, -rank, 10], dtype=torch.int32)
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=fabric)
        half = int((n - 1) / 2)
        scaled = torch.full((4,), float(rank))
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5), group=fabric)
        part, whole = torch.zeros(2), torch.full((2 * n,), float(rank))
        dist.reduce_scatter_tensor(part, whole, dist._make_nccl_premul_sum(2.0), group=fabric)
        total = n * (n - 1) / 2
        return (
            mean.tolist() == [half, -half, 10]
            and bool((scaled == total / 2).all())
            and bool((part == total * 2).all())
            and bool((whole == rank).all())
        )

    def uneven_lists() -> bool:
        gathered = [torch.zeros(r + 1) for r in range(n)]
        dist.all_gather(gathered, torch.full((rank + 1,), float(rank)), group=fabric)
        scattered = torch.zeros(2 * rank)
        dist.reduce_scatter(scattered, [torch.full((2 * r,), float(rank)) for r in range(n)], group=fabric)
        return all(bool((part == r).all()) for r, part in enumerate(gathered)) and bool(
            (scattered == n * (n - 1) / 2).all()
        )

    def coalescing_manager() -> bool:
        tensors = [torch.full((k + 1,), float(rank)) for k in range(3)]
        with dist._coalescing_manager(group=fabric, async_ops=True) as fast:
            for tensor in tensors:
                dist.all_reduce(tensor, group=fabric)
        fast.wait()
        others = [torch.full((k + 1,), float(rank)) for k in range(3)]
        with dist._coalescing_manager(group=fabric, device=torch.device("cpu"), async_ops=True) as slow:
            for root, tensor in enumerate(others):
                dist.broadcast(tensor, root % n, group=fabric, async_op=True)
        slow.wait()
        return all(bool((t == n * (n - 1) / 2).all()) for t in tensors) and all(
            bool((t == root % n).all()) for root, t in enumerate(others)
        )

    def scattered_objects() -> bool:
        mine: list[object] = [None]
        dist.scatter_object_list(mine, [f"for {r}" for r in range(n)] if rank == 0 else None, 0, group=fabric)
        gathered: list[object] | None = [None] * n if rank == 1 else None
        dist.gather_object({"rank": rank}, gathered, 1, group=fabric)
        return mine == [f"for {rank}"] and gathered in (None, [{"rank": r} for r in range(n)])

    def send_and_receive() -> bool:
        right, left = (rank + 1) % n, (rank - 1) % n
        for dtype, count in itertools.product((torch.float32, torch.bfloat16, torch.bool), (0, 6, 600_000)):
            sent, got = make(count, torch.float32, rank).to(dtype), torch.zeros(count, dtype=dtype)
            if rank % 2:
                dist.recv(got, left, group=fabric)
                dist.send(sent, right, group=fabric)
            else:
                dist.send(sent, right, group=fabric)
                dist.recv(got, left, group=fabric)
            if not same_bits(got, make(count, torch.float32, left).to(dtype)):
                raise AssertionError(f"{dtype} {count}")
        return True

    def batches_in_any_order() -> bool:
        large = 800_000
        arrived = [torch.zeros(large) for _ in range(n)]
        others = [r for r in range(n) if r != rank]
        ops = [dist.P2POp(dist.isend, torch.full((large,), float(rank)), r, fabric) for r in others]
        ops += [dist.P2POp(dist.irecv, arrived[r].reshape(1000, -1).t(), r, fabric) for r in others]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return all(bool((arrived[r] == r).all()) for r in others)

    def tags_out_of_order_beside_collectives() -> bool:
        if rank == 0:
            works = [dist.isend(torch.full((100_000,), float(t)), n - 1, group=fabric, tag=t) for t in range(3)]
        total = torch.ones(1000)
        dist.all_reduce(total, group=fabric)
        if rank == n - 1:
            got = [torch.zeros(100_000) for _ in range(3)]
            for tag in (1, 2, 0):
                dist.recv(got[tag], 0, group=fabric, tag=tag)
            return all(bool((g == t).all()) for t, g in enumerate(got))
        if rank == 0:
            for work in works:
                work.wait()
        return bool((total == n).all())

    def from_any_source() -> bool:
        if rank:
            dist.send(torch.tensor([rank]), 0, group=fabric, tag=3)
            return True
        seen = {}
        for _ in range(n - 1):
            got = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(got, None, group=fabric, tag=3)
            seen[source] = int(got)
        return seen == {r: r for r in range(1, n)}

    def futures_of_receives() -> bool:
        if rank == 0:
            dist.send(torch.arange(5.0), 1, group=fabric)
        if rank == 1:
            future = dist.irecv(torch.zeros(5), 0, group=fabric).get_future()
            return torch.equal(future.then(lambda f: f.value()[0] * 2).wait(), torch.arange(5.0) * 2)
        return True

    def monitored_barriers() -> bool:
        fabric.monitored_barrier()
        if rank != n - 1:
            try:
                fabric.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True)
            except Exception as error:
                return f"rank {n - 1} did not come within 1 s" in str(error)
            return False
        return True

    def refused_before_anything_is_sent() -> bool:
        calls: tuple[tuple[Callable[[], object], str], ...] = (
            (lambda: fabric._allgather_base(torch.ones(3), torch.ones(2)), "times as many elements"),
            (lambda: fabric.allgather([[torch.ones(2)] * (n + 1)], [torch.ones(2)]), f"list of {n} tensors"),
            (lambda: fabric.alltoall_base(torch.ones(n), torch.ones(n), [1] * n, [2] * n), "add up to"),
            (lambda: fabric.alltoall([torch.ones(1)], [torch.ones(1)] * n), f"needs {n} output tensors"),
            (lambda: fabric.allreduce([torch.ones(2)], dist.ReduceOp.BXOR).wait(), "has no bxor"),
            (lambda: fabric.allreduce([torch.ones(2, device="meta")]), "CPU tensors"),
            (lambda: fabric.reduce_scatter([torch.ones(2)], [[torch.ones(2)] * (n - 1)]), f"list of {n} tensors"),
        )
        for call, text in calls:
            try:
                call()
            except Exception as error:
                if text not in str(error):
                    raise
            else:
                return False
        return all_gather()

    def subgroups() -> bool:
        evens = list(range(0, n, 2))
        group = dist.new_group(evens, backend="fauxrdma")
        outcome = True
        if rank in evens:
            tensor = torch.full((1000,), float(rank))
            dist.all_reduce(tensor, group=group)
            outcome = bool((tensor == sum(evens)).all()) and dist.get_backend(group) == "fauxrdma"
            dist.destroy_process_group(group)
        dist.barrier()
        return outcome

    checks = (
        broadcast, all_gather, all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor, averages, not_contiguous,
        coalesced, short_forms, objects, async_in_order, callbacks_may_communicate, functional, reduce,
        gather_and_scatter, all_to_all, bits_of_integers, integer_averages_and_premultiplied_sums, uneven_lists,
        coalescing_manager, scattered_objects, send_and_receive, batches_in_any_order,
        tags_out_of_order_beside_collectives, from_any_source, futures_of_receives, monitored_barriers,
        refused_before_anything_is_sent, subgroups,
    )  # fmt: skip
    for check in checks:
        yield check.__name__, check


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fabric = dist.new_group(backend="fauxrdma")
    failed = 0
    for name, check in itertools.chain(all_reduces(fabric), others(fabric)):
        try:
            ok, note = check(), ""
        except Exception:
            ok, note = False, traceback.format_exc()
        failed += not ok
        print(json.dumps({"check": name, "ok": bool(ok), "note": note}), flush=True)
        dist.barrier()
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
