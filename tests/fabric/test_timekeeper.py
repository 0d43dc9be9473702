"""When virtual time may go on: single cases, and a world in which messages take any wall time they like."""

from __future__ import annotations

import random
from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.fabric.timekeeper import POLL_NS, Go, Look, NodeWord, Timekeeper, Turn, Verdict


def asleep(keeper: Timekeeper, due_ns: int | None = None) -> Go | Turn | Look | Verdict:
    """What comes after both phases of a look that finds all asleep."""
    for phase in (1, 2):
        look = keeper.next(due_ns)
        assert isinstance(look, Look)
        assert look.phase == phase
        assert keeper.next(due_ns) is Verdict.WAIT
        for node in keeper.nodes:
            keeper.looked(node, look, asleep=True)
    return keeper.next(due_ns)


def two_nodes(**word: object) -> Timekeeper:
    keeper = Timekeeper()
    for node in (0, 1):
        keeper.join(node)
        keeper.word(node, NodeWord(0, participants=1, **word))  # type: ignore[arg-type]
    return keeper


class TestCases:
    def test_time_goes_to_the_least_deadline(self) -> None:
        keeper = two_nodes(due_ns=700)
        keeper.word(1, NodeWord(0, due_ns=300, participants=1))
        assert asleep(keeper, due_ns=500) == Go(1, 300)

    def test_the_subnet_managers_own_deadline_counts(self) -> None:
        assert asleep(two_nodes(due_ns=700), due_ns=500) == Turn(500)

    def test_an_overdue_deadline_does_not_turn_time_back(self) -> None:
        keeper = two_nodes(due_ns=100)
        assert asleep(keeper) == Go(1, 100)
        for node in (0, 1):
            keeper.word(node, NodeWord(1, due_ns=40, participants=1))
        assert asleep(keeper) == Go(2, 100)

    def test_nothing_happens_while_a_frame_is_under_way(self) -> None:
        keeper = two_nodes(due_ns=100)
        keeper.word(0, NodeWord(0, sent={1: 3}, due_ns=100, participants=1))
        assert keeper.next() is Verdict.WAIT
        keeper.word(1, NodeWord(0, received={0: 3}, participants=1))
        assert asleep(keeper) == Go(1, 100)

    def test_nothing_happens_while_a_message_of_the_manager_is_under_way(self) -> None:
        keeper = two_nodes(due_ns=100)
        keeper.told(1)
        assert keeper.next() is Verdict.WAIT
        keeper.word(1, NodeWord(0, heard=1, participants=1))
        assert asleep(keeper) == Go(1, 100)

    def test_a_rank_at_work_stops_time(self) -> None:
        keeper = two_nodes(due_ns=100)
        look = keeper.next()
        assert isinstance(look, Look)
        keeper.looked(0, look, asleep=True)
        keeper.looked(1, look, asleep=False)
        assert keeper.next() is Verdict.RETRY

    def test_an_answer_to_an_earlier_look_is_none(self) -> None:
        keeper = two_nodes(due_ns=100)
        look = keeper.next()
        assert isinstance(look, Look)
        keeper.told(0)
        assert keeper.next() is Verdict.WAIT
        keeper.word(0, NodeWord(0, heard=1, due_ns=100, participants=1))
        again = keeper.next()
        assert isinstance(again, Look)
        assert again != look
        for node in (0, 1):
            keeper.looked(node, look, asleep=True)
        assert keeper.next() is Verdict.WAIT

    def test_applications_are_not_looked_at_when_nothing_woke_them(self) -> None:
        assert two_nodes(due_ns=100, woke=False).next() == Go(1, 100)

    def test_blocked_with_nothing_due(self) -> None:
        assert asleep(two_nodes(woke=False)) is Verdict.BLOCKED

    def test_no_participants_no_time(self) -> None:
        keeper = Timekeeper()
        keeper.join(0)
        keeper.word(0, NodeWord(0, polling=True))
        assert asleep(keeper) is Verdict.UNUSED

    def test_what_was_left_under_way_is_played_out(self) -> None:
        keeper = Timekeeper()
        keeper.join(0)
        keeper.word(0, NodeWord(0, due_ns=100))
        assert asleep(keeper) == Go(1, 100)
        keeper.word(0, NodeWord(1))
        assert asleep(keeper) is Verdict.UNUSED

    def test_polls_take_time_when_nothing_else_does(self) -> None:
        keeper = two_nodes(polling=True)
        times = []
        for step in range(1, 4):
            go = asleep(keeper)
            assert isinstance(go, Go)
            times.append(go.now_ns // POLL_NS)
            for node in (0, 1):
                keeper.word(node, NodeWord(step, polling=True, participants=1))
        assert times == [20, 60, 140]

    def test_a_node_that_left_is_not_waited_for(self) -> None:
        keeper = two_nodes(due_ns=100)
        keeper.word(0, NodeWord(0, sent={1: 3}, due_ns=100, participants=1))
        keeper.leave(1)
        assert asleep(keeper) == Go(1, 100)


Event = tuple[int, int, int]
"""Time, node, and what it is: a number from which follows what it causes."""


def caused(event: Event, nodes: int) -> list[tuple[int, int, int]]:
    """What an event has its node send: (node, latency, number), by the number alone."""
    _, node, number = event
    rng = random.Random(number * 7919 + node)
    if number > 40:
        return []
    return [
        (rng.randrange(nodes), rng.randrange(1, 50), number + rng.randrange(8, 20)) for _ in range(rng.choice((1, 2)))
    ]


class World:
    """Nodes, each with an application that reacts to every event, after a while of wall time, by sending what the event
    causes. Everything that can happen next is chosen by `rng`."""

    def __init__(self, nodes: int, rng: random.Random) -> None:
        self.keeper = Timekeeper()
        self.rng = rng
        self.count = nodes
        self.trace: list[Event] = []
        self.orders: list[deque[Go | Look]] = [deque() for _ in range(nodes)]
        self.words: list[deque[tuple[NodeWord, Look | None, bool]]] = [deque() for _ in range(nodes)]
        self.flying: dict[tuple[int, int], deque[Event]] = {}
        self.inbox: list[list[Event]] = [[(0, node, node)] for node in range(nodes)]
        self.work: list[list[Event]] = [[] for _ in range(nodes)]  # what the application has been given
        self.posted: list[list[Event]] = [[] for _ in range(nodes)]
        self.sent = [Counter[int]() for _ in range(nodes)]
        self.received = [Counter[int]() for _ in range(nodes)]
        self.now = [0] * nodes
        self.step = [0] * nodes
        self.woke = [True] * nodes
        self.activity = [0] * nodes
        self.before = [0] * nodes
        for node in range(nodes):
            self.keeper.join(node)
            self.say(node)

    def say(self, node: int, look: Look | None = None, asleep: bool = False) -> None:
        due = [at for at, _, _ in self.inbox[node]] + ([self.now[node]] if self.posted[node] else [])
        word = NodeWord(
            self.step[node], 0, dict(self.sent[node]), dict(self.received[node]), min(due, default=None),
            self.woke[node], False, 1,
        )  # fmt: skip
        self.words[node].append((word, look, asleep))

    def order(self, node: int) -> None:
        order = self.orders[node].popleft()
        if isinstance(order, Look):
            if order.phase == 1:
                self.before[node] = self.activity[node]
            self.say(node, order, not self.work[node] and self.activity[node] == self.before[node])
            return
        self.step[node], self.now[node] = order.step, order.now_ns
        self.woke[node] = False
        for event in self.posted[node]:
            for target, latency, number in caused(event, self.count):
                arrival = (order.now_ns + latency, target, number)
                if target == node:
                    self.inbox[node].append(arrival)
                else:
                    self.sent[node][target] += 1
                    self.flying.setdefault((node, target), deque()).append(arrival)
        self.posted[node].clear()
        due = sorted(event for event in self.inbox[node] if event[0] <= order.now_ns)
        self.inbox[node] = [event for event in self.inbox[node] if event[0] > order.now_ns]
        for event in due:
            assert event[0] == order.now_ns, "time went past what was due"
            self.trace.append(event)
            self.work[node].append(event)
            self.woke[node] = True
        self.activity[node] += 1
        self.say(node)

    def act(self, node: int) -> None:
        """The application does one thing that it has been given."""
        self.posted[node].append(self.work[node].pop())
        self.woke[node] = True
        self.activity[node] += 1
        self.say(node)

    def arrive(self, way: tuple[int, int]) -> None:
        source, target = way
        self.inbox[target].append(self.flying[way].popleft())
        self.received[target][source] += 1
        self.activity[target] += 1
        self.say(target)

    def hear(self, node: int) -> None:
        word, look, asleep = self.words[node].popleft()
        self.keeper.word(node, word)
        if look is not None:
            self.keeper.looked(node, look, asleep)

    def run(self) -> list[Event]:
        while True:
            able = [(self.order, node) for node in range(self.count) if self.orders[node]]
            able += [(self.act, node) for node in range(self.count) if self.work[node]]
            able += [(self.hear, node) for node in range(self.count) if self.words[node]]
            ways = [way for way, frames in self.flying.items() if frames]
            if able or ways:
                choice = self.rng.randrange(len(able) + len(ways))
                if choice < len(able):
                    call, node = able[choice]
                    call(node)
                else:
                    self.arrive(ways[choice - len(able)])
                if self.rng.random() < 0.5:
                    continue
            order = self.keeper.next()
            if isinstance(order, Go | Look):
                for queue in self.orders:
                    queue.append(order)
            elif order is Verdict.BLOCKED and not able and not ways:
                return self.trace


def expected(nodes: int) -> list[Event]:
    """The same, one event after the other."""
    todo = [(0, node, node) for node in range(nodes)]
    done = []
    while todo:
        todo.sort()
        event = todo.pop(0)
        done.append(event)
        todo += [(event[0] + latency, target, number) for target, latency, number in caused(event, nodes)]
    return sorted(done)


@given(st.integers(1, 4), st.integers(0, 1 << 32))
def test_every_event_happens_at_its_time_however_long_messages_take(nodes: int, seed: int) -> None:
    trace = World(nodes, random.Random(seed)).run()
    assert [at for at, _, _ in trace] == sorted(at for at, _, _ in trace)
    assert sorted(trace) == expected(nodes)
