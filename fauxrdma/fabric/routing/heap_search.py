"""Dijkstra's search as OpenSM's dfsssp does it, down to which of two equally near switches comes first.

Among equals the one is next that OpenSM's heap (complib's cl_heap.c, four children to a parent) has on top, and that
depends on every step before. So the heap's steps are the same here: an element moves up past greater parents; down past
the least of smaller children, the last one on a tie; and the last element takes the place of the first when that is
taken out.
"""

from __future__ import annotations

__all__ = ["Links", "search"]

Links = list[list[tuple[int, int]]]
"""For each vertex its links by port: the vertex at the far end, and the number of the channel from there to here."""

_CHILDREN = 4
_FAR = 0x7FFFFFFF
"""Farther than anything, to OpenSM."""


def search(links: Links, weight: list[int], source: int) -> tuple[list[int], list[int]]:
    """The channel by which each vertex is reached from `source` at the least weight, -1 if it is not; and the vertices
    in the order in which they were reached, the source first. `weight[channel]`: what a channel costs."""
    count = len(links)
    heap = _Heap(count)
    distance = [_FAR] * count
    reached_by = [-1] * count
    order: list[int] = []
    done = [False] * count
    distance[source] = 0
    heap.lessen(source, 0)
    while heap.size:
        at = heap.take_first()
        done[at] = True
        here = distance[at]
        if here < _FAR:
            order.append(at)
        for peer, channel in links[at]:
            if not done[peer] and here + weight[channel] < distance[peer]:
                distance[peer] = here + weight[channel]
                reached_by[peer] = channel
                heap.lessen(peer, distance[peer])
    return reached_by, order


class _Heap:
    """Vertices 0, 1, ... with their distances as keys, all far at first, in the order in which they were put in."""

    def __init__(self, count: int) -> None:
        self.size = count
        self._keys = [_FAR] * count
        self._vertices = list(range(count))
        self._place = list(range(count))

    def lessen(self, vertex: int, key: int) -> None:
        """Give a vertex a smaller key."""
        keys, vertices, place = self._keys, self._vertices, self._place
        at = place[vertex]
        while at:
            parent = (at - 1) // _CHILDREN
            if key >= keys[parent]:
                break
            keys[at], vertices[at] = keys[parent], vertices[parent]
            place[vertices[at]] = at
            at = parent
        keys[at], vertices[at] = key, vertex
        place[vertex] = at

    def take_first(self) -> int:
        """Take out the vertex on top."""
        keys, vertices, place = self._keys, self._vertices, self._place
        first = vertices[0]
        self.size = size = self.size - 1
        key, vertex = keys[size], vertices[size]
        at = 0
        while (child := _CHILDREN * at + 1) < size:
            least, smallest = child, keys[child]
            for other in range(child + 1, min(child + _CHILDREN, size)):
                if keys[other] <= smallest:
                    least, smallest = other, keys[other]
            if key <= smallest:
                break
            keys[at], vertices[at] = smallest, vertices[least]
            place[vertices[at]] = at
            at = least
        keys[at], vertices[at] = key, vertex
        place[vertex] = at
        return first
