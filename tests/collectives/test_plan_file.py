"""Plans from files: the examples proved and played, and every mistake shown where it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.collectives.algorithms import plan_for
from fauxrdma.collectives.plan import Plan, Reduce
from fauxrdma.collectives.plan_file import operation_of_file, plan_of_file
from fauxrdma.collectives.plan_file.expressions import parse_expression
from fauxrdma.collectives.request import Request
from fauxrdma.collectives.symbolic import run_symbolically
from fauxrdma.errors import ConfigError
from fauxrdma.sim.plan_run import run_plan
from fauxrdma.sim.world import World

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plans"


def request(operation: str, n: int, count: int, root: int = 0, chunk_bytes: int = 64) -> Request:
    blocks: dict[str, int | tuple[int, ...] | tuple[tuple[int, ...], ...]] = {
        "all_gather": (count,) * n,
        "reduce_scatter": (count,) * n,
        "all_to_all": ((count,) * n,) * n,
    }
    return Request(operation, n, blocks.get(operation, count), 4, chunk_bytes, 2, root)


def written(directory: Path, text: str) -> str:
    path = directory / "plan.yaml"
    path.write_text(text)
    return str(path)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 90))
def test_the_examples_do_what_they_say_for_any_size(data: st.DataObject, count: int) -> None:
    name, numbers = data.draw(
        st.sampled_from(
            [
                ("ring_all_reduce", [1, 2, 3, 5, 8]),
                ("recursive_doubling", [2, 4, 8]),
                ("two_pairs", [4]),
                ("tree_broadcast", [1, 2, 3, 6, 7, 8]),
            ]
        )
    )
    n = data.draw(st.sampled_from(numbers))
    root = data.draw(st.integers(0, n - 1))
    path = str(EXAMPLES / f"{name}.yaml")
    plan = plan_of_file(path, request(operation_of_file(path), n, count, root))
    slots = 2 * plan.lanes
    pick = data.draw(st.randoms(use_true_random=False))
    result = run_symbolically(plan, slots=slots, credit_batch=slots // 2, choose=pick.randrange)
    assert result.traffic == [plan.traffic(rank) for rank in range(n)]
    for rank in range(n):
        for element, value in enumerate(result.buffers[rank]["data"]):
            if plan.name == "broadcast":
                assert value == (root, "data", element)
            else:
                assert sorted(leaves(value)) == [(source, "data", element) for source in range(n)]


def leaves(value: object) -> list[tuple[int, str, int]]:
    assert isinstance(value, tuple)
    if value[0] != "op":
        return [value]
    return leaves(value[1]) + leaves(value[2])


def test_a_ring_from_a_file_is_a_ring() -> None:
    plan = plan_of_file(str(EXAMPLES / "ring_all_reduce.yaml"), request("all_reduce", 5, 50))
    ring = plan_for(request("all_reduce", 5, 50), "ring")
    assert (plan.rounds, plan.algorithm) == (ring.rounds, f"file:{EXAMPLES / 'ring_all_reduce.yaml'}")
    assert [plan.traffic(rank).elements for rank in range(5)] == [2 * 4 * 10] * 5


def test_averages_divide_once_where_the_reduction_is_complete() -> None:
    for name, n in (("ring_all_reduce", 3), ("recursive_doubling", 4), ("two_pairs", 4)):
        plan = plan_of_file(str(EXAMPLES / f"{name}.yaml"), request("all_reduce", n, 40, chunk_bytes=65536))
        arrays = [np.arange(40, dtype=np.float32) * (rank + 1) for rank in range(n)]
        run_plan(World(n), plan, [{"data": array} for array in arrays], op="avg")
        for array in arrays:
            np.testing.assert_allclose(array, np.arange(40) * (n + 1) / 2, rtol=1e-6)
        finals = [step.final for rank in range(n) for step in plan.program(rank).steps if isinstance(step, Reduce)]
        assert True in finals


OTHER_OPERATIONS = {
    "all_gather": """
operation: all_gather
steps:
  - copy: input
    into: output[rank]
  - repeat: n - 1
    steps:
      - - {send: "output[rank - i]", to: rank + 1}
        - {receive: "output[rank - 1 - i]", from: rank - 1}
""",
    "reduce_scatter": """
operation: reduce_scatter
scratch: n
steps:
  - copy: input
    into: scratch
  - repeat: n - 1
    steps:
      - - {send: "scratch[rank - 1 - i]", to: rank + 1}
        - {receive: "scratch[rank - 2 - i]", from: rank - 1, reduce: true}
  - copy: scratch[rank]
    into: output
""",
    "all_to_all": """
operation: all_to_all
chunks: 2
steps:
  - copy: input[2*rank:2*rank+2]
    into: output[2*rank:2*rank+2]
  - repeat: n - 1
    as: k
    steps:
      - - send: input[(rank + k + 1) % n * 2:(rank + k + 1) % n * 2 + 2]
          to: rank + k + 1
        - receive: output[(rank - k - 1) % n * 2:(rank - k - 1) % n * 2 + 2]
          from: rank - k - 1
""",
    "reduce": """
operation: reduce
steps:
  - if: rank != root
    send: data
    to: root
  - repeat: n - 1
    if: rank == root
    steps:
      - {receive: data, from: root + 1 + i, reduce: true}
""",
}


@pytest.mark.parametrize("operation", OTHER_OPERATIONS)
@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize("count", [0, 1, 37])
def test_other_operations(operation: str, n: int, count: int, tmp_path: Path) -> None:
    path = written(tmp_path, OTHER_OPERATIONS[operation])
    root = n // 2
    plan = plan_of_file(path, request(operation, n, count, root))
    result = run_symbolically(plan, slots=4, credit_batch=2).buffers
    for rank in range(n):
        if operation == "all_gather":
            assert result[rank]["output"] == [(source, "input", i) for source in range(n) for i in range(count)]
        elif operation == "all_to_all":
            wanted = [(source, "input", rank * count + i) for source in range(n) for i in range(count)]
            assert result[rank]["output"] == wanted
        elif operation == "reduce_scatter":
            for i, value in enumerate(result[rank]["output"]):
                assert sorted(leaves(value)) == [(source, "input", rank * count + i) for source in range(n)]
        elif rank == root:
            for i, value in enumerate(result[rank]["data"]):
                assert sorted(leaves(value)) == [(source, "data", i) for source in range(n)]


RING = "operation: all_reduce\nchunks: n\nsteps:\n"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("", "1:1", "the file is empty: a plan needs operation and steps"),
        ("operation: all_reduce\n", "1:1", "'steps' is missing here"),
        ("operation: allreduce\nsteps: []\n", "1:12", "'allreduce' is not an operation (did you mean all_reduce?)"),
        ("operation: all_reduce\nstep: []\n", "2:1", "unknown key 'step' (did you mean steps?)"),
        ("operation: all_reduce\nranks: two\nsteps: []\n", "2:8", "'two' is no number of ranks"),
        ("operation: all_reduce\nranks: [2, 5]\nsteps: []\n", "2:8", "this plan is for 2 or 5 ranks, not for 3"),
        ("operation: broadcast\nsteps: []\n", "1:12", "this plan is for broadcast, not for all_reduce"),
        (RING + "  - data[0]\n", "4:5", "a move is one of {send: data[0], to: 1}"),
        (RING + "  - send: data[0]\n", "4:5", "'to' is missing here"),
        (RING + "  - send: data[0]\n    to: left\n", "5:9", "'left' is not known here"),
        (RING + "  - send: data[1/2]\n    to: 1\n", "4:11", "divide with //"),
        (RING + "  - send: dada[0]\n    to: 1\n", "4:11", "no buffer 'dada' (did you mean data?)"),
        (RING + "  - send: scratch[0]\n    to: 1\n", "4:11", "declare it, as scratch: 4"),
        (RING + "  - send: data[2:]\n    to: 1\n", "4:11", "write both ends"),
        (RING + "  - send: data[2:9]\n    to: rank + 1\n", "4:11", "data[2:9] on rank 0: data has chunks 0 to 3"),
        (RING + "  - send: data[0]\n    to: rank + n\n", "4:5", "rank 0 would send to itself"),
        (RING + "  - send: data[0]\n    to: rank + 1\n    reduce: true\n", "6:5", "unknown key 'reduce'"),
        (RING + "  - repeat: n // 0\n    steps: []\n", "4:13", "'n // 0' has no value"),
        (RING + "  - repeat: 2\n    as: n\n    steps: []\n", "5:9", "'n' is taken"),
        (RING + "  - copy: data[0]\n    into: data[0:2]\n", "4:5", "of unequal length"),
        (
            RING + "  - send: data[0]\n    to: rank + 1\n",
            "4:5",
            "rank 0 sends data[0] to rank 1, which does not receive",
        ),
        (
            RING + "  - receive: data[0]\n    from: 1\n    if: rank == 0\n",
            "4:5",
            "rank 0 waits for data[0] from rank 1",
        ),
        (
            RING + "  - - {send: 'data[0]', to: rank + 1}\n    - {receive: 'data[0:2]', from: rank - 1}\n",
            "5:7",
            "rank 0 receives into data[0:2] in the step in which it sends data[0]: take two steps",
        ),
        (
            RING + "  - receive: data[0]\n    from: rank + 1\n  - send: data[0]\n    to: rank - 1\n",
            "4:5",
            "deadlock: rank 0 waits here for rank 1",
        ),
        (
            "operation: all_reduce\nsteps:\n  - send: data\n    to: rank + 1\n  - receive: data\n    from: rank - 1\n",
            "3:3",
            "all_reduce deadlocks with 4 slots per peer",
        ),
        (
            "operation: all_reduce\nsteps:\n  - - {send: data, to: rank + 1}\n    - {receive: data, from: rank - 1}\n",
            "3:3",
            "data[0] of rank 0 ends as rank 2's data[0]: not the value of every rank once",
        ),
        (
            "operation: all_reduce\nsteps:\n  - repeat: 3\n    steps:\n"
            "      - - {send: data, to: rank + 1}\n        - {receive: data, from: rank - 1, reduce: true}\n",
            "6:11",
            "rank 2 would reduce in what came from rank 1 a second time",
        ),
        (
            "operation: all_reduce\nscratch: 1\nsteps:\n  - {copy: data, into: scratch}\n  - repeat: n - 1\n"
            "    steps:\n"
            "      - - {send: scratch, to: rank + 1}\n        - {receive: scratch, from: rank - 1}\n"
            "      - - {send: scratch, to: rank - 1}\n        - {receive: scratch, from: rank + 1}\n",
            "4:3",
            "ends as rank 0's data[0]: not the value of every rank once",
        ),
        ("operation: all_reduce\nsteps: {0: [], one: []}\n", "2:16", "'one' is no rank"),
        ("operation: all_reduce\nsteps: {0: [], 5: []}\n", "2:19", "there is no rank 5 among 3"),
        (
            "operation: broadcast\nsteps:\n - {receive: data, from: 0, reduce: true}\n",
            "3:29",
            "broadcast reduces nothing",
        ),
        ("operation: all_reduce\nchunks: 0\nsteps: []\n", "2:9", "'0' is 0: it must be at least 1"),
        ("operation: all_reduce\nsteps: [\n", "3:1", ""),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, where: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        plan_of_file(path, request("all_reduce", 3, 30))
    assert str(caught.value).startswith(f"{path}:{where}: ")
    assert words in str(caught.value)


def test_ranks_that_reduce_in_different_orders_are_refused(tmp_path: Path) -> None:
    # Everybody collects everything, in the order of the ranks after it: right, but not the same bits.
    text = """
operation: all_reduce
scratch: 1
steps:
  - {copy: data, into: scratch}
  - repeat: n - 1
    steps:
      - - {send: scratch, to: rank + 1 + i}
        - {receive: data, from: rank - 1 - i, reduce: true}
"""
    with pytest.raises(ConfigError, match="reduced in another order than on rank 0: the ranks would have different"):
        plan_of_file(written(tmp_path, text), request("all_reduce", 3, 30))
    plan = plan_of_file(written(tmp_path / "..", text), request("all_reduce", 2, 30))  # of two, either order is one
    assert plan.rounds == 1


def test_blocks_of_unequal_sizes_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, OTHER_OPERATIONS["all_gather"])
    with pytest.raises(ConfigError, match=r"for blocks of one size, not for \[3, 4\]"):
        plan_of_file(path, Request("all_gather", 2, (3, 4), 4, 64, 2))
    with pytest.raises(ConfigError, match="no such file"):
        plan_of_file(str(tmp_path / "missing.yaml"), request("all_gather", 2, 3))


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(0, 5))
def test_expressions_are_arithmetic(a: int, b: int, c: int) -> None:
    names = {"rank": a, "n": b, "i": c}
    for text in ("rank + n * 2 - i", "(rank ^ 2 ** i) % 7", "-rank // 3", "not rank < n <= 5 or i == 1 and n > 0"):
        assert parse_expression(text).value(names) == int(eval(text, {}, names))


@pytest.mark.parametrize("text", ["__import__('os')", "rank.real", "[1]", "1.5", "'a'", "f(2)", "rank if n else 0", ""])
def test_nothing_but_arithmetic_is_let_through(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_expression(text)
    for large in ("2 ** 99", "1 << 60", "2 ** 39 * 2 ** 39"):
        with pytest.raises(ConfigError, match="has no value"):
            parse_expression(large).value({})


def test_a_plan_of_a_file_is_a_plan(tmp_path: Path) -> None:
    plan = plan_for(request("all_reduce", 4, 4), f"file:{EXAMPLES / 'two_pairs.yaml'}")
    assert isinstance(plan, Plan)
    assert plan is plan_for(request("all_reduce", 4, 4), f"file:{EXAMPLES / 'two_pairs.yaml'}")
    assert plan.reduction_order == "own pair first, then the other"


def test_the_plans_of_the_page_are_right(tmp_path: Path) -> None:
    page = (EXAMPLES.parents[1] / "docs" / "plans.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        path = written(tmp_path, block)
        for n in (2, 5):
            assert plan_of_file(path, request(operation_of_file(path), n, 100)).rounds
