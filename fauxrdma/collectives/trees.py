"""Trees: reduce and broadcast along a binomial tree, and all-reduce along two binary trees at once.

A tree moves a buffer in pieces, so that all its levels are busy: in step t a rank of depth d sends piece t - (D - d) to
its parent and takes in the next one from its children (D the depth of the deepest); on the way down the same, turned
around.

**Double binary tree** (Sanders, Speck and Träff 2009; what NCCL calls Tree): every rank of a binary tree but its leaves
sends and receives twice as much as it has, so one tree uses half of each leaf's link. Two trees in which the inner
ranks of one are the leaves of the other (here the second is the first with every rank shifted by one, or mirrored when
n is even) each carry half of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.stepwise import Receive, Send, Step, step_plan

__all__ = ["Tree", "binary_tree", "binomial_tree", "double_tree_all_reduce", "tree_broadcast", "tree_reduce"]


@dataclass(frozen=True)
class Tree:
    """Parents and children by rank. Children are in the order in which their values are reduced."""

    root: int
    parent: dict[int, int]
    children: dict[int, tuple[int, ...]]
    depth: dict[int, int]

    @property
    def height(self) -> int:
        """The depth of the deepest rank."""
        return max(self.depth.values())

    def renamed(self, names: dict[int, int]) -> Tree:
        """The same tree of other ranks."""
        return Tree(
            names[self.root],
            {names[a]: names[b] for a, b in self.parent.items()},
            {names[a]: tuple(names[b] for b in below) for a, below in self.children.items()},
            {names[a]: depth for a, depth in self.depth.items()},
        )


def _tree(root: int, parent: dict[int, int], world_size: int) -> Tree:
    children = {r: tuple(c for c in range(world_size) if parent.get(c) == r) for r in range(world_size)}
    depth = {root: 0}
    todo = [root]
    while todo:
        at = todo.pop()
        for child in children[at]:
            depth[child] = depth[at] + 1
            todo.append(child)
    return Tree(root, parent, children, depth)


def binomial_tree(world_size: int, root: int) -> Tree:
    """Rank root + v has the parent root + (v without its lowest bit); ranks modulo n."""
    parent = {(root + v) % world_size: (root + (v & (v - 1))) % world_size for v in range(1, world_size)}
    return _tree(root, parent, world_size)


def binary_tree(world_size: int) -> Tree:
    """NCCL's in-order tree of ranks: odd ranks are leaves; a rank whose lowest bit is b has children at distance b/2.

    Rank 0 is the root with one child, the greatest power of two below n.
    """
    parent: dict[int, int] = {}
    for rank in range(1, world_size):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        parent[rank] = up if up < world_size else rank ^ bit
    return _tree(0, parent, world_size)


def _two_trees(world_size: int) -> tuple[Tree, Tree]:
    first = binary_tree(world_size)
    if world_size % 2:
        names = {rank: (rank + 1) % world_size for rank in range(world_size)}
    else:
        names = {rank: world_size - 1 - rank for rank in range(world_size)}
    return first, first.renamed(names)


@dataclass(frozen=True)
class _Pieces:
    """A slice cut into `number` pieces of equal length, the last ones shorter or empty."""

    whole: Slice
    number: int

    def __getitem__(self, index: int) -> Slice:
        each = -(-self.whole.count // self.number)
        start = min(index * each, self.whole.count)
        return Slice(self.whole.buffer, self.whole.offset + start, min(each, self.whole.count - start))


def _up(tree: Tree, rank: int, pieces: _Pieces, t: int) -> Step:
    """Step t of reducing towards the root."""
    depth, step = tree.height - tree.depth[rank], []
    if rank != tree.root and 0 <= t - depth < pieces.number:
        step.append(Send(tree.parent[rank], pieces[t - depth]))
    # A child is one level deeper: what it sends now is the piece after the one sent from here.
    mine = t - depth + 1
    below = tree.children[rank]
    moves: Step = [*step]
    if 0 <= mine < pieces.number:
        for child in below:
            final = rank == tree.root and child == below[-1]
            moves.append(Receive(child, pieces[mine], reduce=True, final=final))
    return moves


def _down(tree: Tree, rank: int, pieces: _Pieces, t: int) -> Step:
    """Step t of sending away from the root."""
    depth = tree.depth[rank]
    moves: Step = []
    if 0 <= t - depth < pieces.number:
        moves += [Send(child, pieces[t - depth]) for child in tree.children[rank]]
    if rank != tree.root and 0 <= t - depth + 1 < pieces.number:
        moves.append(Receive(tree.parent[rank], pieces[t - depth + 1]))
    return moves


def _number(count: int, chunk: int) -> int:
    return max(1, -(-count // chunk))


def tree_reduce(count: int, world_size: int, root: int, *, chunk: int) -> Plan:
    """Reduce `count` elements of `data` to `root` along a binomial tree; the other ranks' `data` is scratch.

    Each rank but the root sends the buffer once. Raises LocalProtocolError for impossible sizes.
    """
    tree = binomial_tree(world_size, root)
    pieces = _Pieces(Slice("data", 0, count), _number(count, chunk))
    rounds = tree.height + pieces.number - 1 if world_size > 1 else 0

    def steps(rank: int) -> Iterator[Step]:
        return (_up(tree, rank, pieces, t) for t in range(rounds))

    def sends(rank: int) -> Iterator[int]:
        if rank != root:
            yield from (pieces[k].count for k in range(pieces.number))

    order = "children in rank order into their parent, leaves first: ((x[r] op x[c1]) op x[c2]) ..."
    return step_plan(
        "reduce", "binomial-tree", world_size, {"data": count},
        rounds=rounds, chunk=chunk, lanes=1, order=order, steps=steps, sends=sends,
    )  # fmt: skip


def tree_broadcast(count: int, world_size: int, root: int, *, chunk: int) -> Plan:
    """Broadcast `count` elements of the root's `data` along a binomial tree, in pieces of `chunk` elements.

    Each rank sends the buffer once to each of its children. Raises LocalProtocolError for impossible sizes.
    """
    tree = binomial_tree(world_size, root)
    pieces = _Pieces(Slice("data", 0, count), _number(count, chunk))
    rounds = tree.height + pieces.number - 1 if world_size > 1 else 0

    def steps(rank: int) -> Iterator[Step]:
        return (_down(tree, rank, pieces, t) for t in range(rounds))

    def sends(rank: int) -> Iterator[int]:
        for _ in tree.children[rank]:
            yield from (pieces[k].count for k in range(pieces.number))

    return step_plan(
        "broadcast", "binomial-tree", world_size, {"data": count},
        rounds=rounds, chunk=chunk, lanes=1, order="nothing is reduced", steps=steps, sends=sends,
    )  # fmt: skip


def double_tree_all_reduce(count: int, world_size: int, *, chunk: int) -> Plan:
    """All-reduce of `count` elements in place in `data` along two complementary binary trees, half of the data each.

    A rank sends its half once up and once to each child, in either tree. Raises LocalProtocolError for impossible
    sizes.
    """
    half = (count + 1) // 2
    trees = _two_trees(world_size) if world_size > 1 else ()
    wholes = (Slice("data", 0, half), Slice("data", half, count - half))
    number = _number(half, chunk)
    parts = [(tree, _Pieces(whole, number)) for tree, whole in zip(trees, wholes, strict=False)]
    height = trees[0].height if trees else 0
    # A piece that reaches the root in step t goes down from step t + 1 on, while later ones still come up.
    rounds = 2 * height + number - 1 if trees else 0

    def steps(rank: int) -> Iterator[Step]:
        for t in range(rounds):
            step: Step = []
            for tree, pieces in parts:
                step += _up(tree, rank, pieces, t)
                step += _down(tree, rank, pieces, t - height)
            yield step

    def sends(rank: int) -> Iterator[int]:
        for tree, pieces in parts:
            copies = len(tree.children[rank]) + (rank != tree.root)
            for _ in range(copies):
                yield from (pieces[k].count for k in range(number))

    order = "two binary trees: children in rank order into their parent, leaves first"
    return step_plan(
        "all_reduce", "double-tree", world_size, {"data": count},
        rounds=rounds, chunk=chunk, lanes=1, order=order, steps=steps, sends=sends,
    )  # fmt: skip
