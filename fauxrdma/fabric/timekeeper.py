"""Virtual time for many processes: when may it go on, and how far.

The timekeeper knows, from the latest *word* of each node, what has been sent and received, what is due next, and
whether applications may be awake. Time goes on only when nothing is under way::

    settled     every node has carried out the last step and taken in all that the subnet manager told it, and for each
                pair of nodes as many frames were received as sent
    asleep      no application has been given anything since all were last seen asleep, or they are looked at: twice
                all nodes in turn, so that there is an instant between at which all slept
    go          step + 1, at the least time that is due anywhere; several steps may have one time
    turn        the same when it is the subnet manager that has something to do then: it comes before the nodes' step

That the words are of different instants does no harm. Suppose some node became active after its word; take the first
that did. It was made active by a frame or a message, which was sent before the word of its sender, since that was
active before its own word only; so it is missing in the counts and nothing is settled (Mattern, "Algorithms for
distributed termination detection", 1987, the vector method).

Applications that poll have time go on by what an empty poll costs, a batch at a time, when nothing else is due.

Sans-IO: the service asks `next()` for what to do after every word and after pauses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

__all__ = ["POLL_NS", "Go", "Look", "NodeWord", "Timekeeper", "Turn", "Verdict"]

POLL_NS = 50
"""What an empty poll costs in fabric time."""
_FIRST_BATCH, _LAST_BATCH = 20, 20_000
"""Polls that time goes on by when nothing else is due: more and more while that lasts, from 1 us to 1 ms."""


@dataclass(slots=True)
class NodeWord:
    """What a node says of itself. `step`: the last that it carried out; `heard`: messages from the subnet manager taken
    in; `sent` and `received`: frames by other node, since the start; `due_ns`: when it has something to do, None for
    never; `woke`: applications may be awake, since it gave them something or they asked for something in this step;
    `polling`: one waits in an empty poll; `participants`: processes that are waited for."""

    step: int = -1
    heard: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    due_ns: int | None = None
    woke: bool = True
    polling: bool = False
    participants: int = 0


class Verdict(Enum):
    """What to do when there is no order to give."""

    WAIT = auto()
    """Until a node says something."""
    RETRY = auto()
    """Applications are awake: look again after a pause."""
    BLOCKED = auto()
    """All are blocked and nothing is due anywhere; look again after a pause."""
    UNUSED = auto()
    """There is no participant, and so nobody for whom time should go on; what was under way is done."""


@dataclass(frozen=True, slots=True)
class Look:
    """Ask every node whether all its applications sleep; `phase` 1, then 2."""

    number: int
    phase: int


@dataclass(frozen=True, slots=True)
class Go:
    """Have every node carry out what is due by `now_ns`."""

    step: int
    now_ns: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The subnet manager is to do what is due by `now_ns`, after it has told all nodes that it is that late."""

    now_ns: int


class Timekeeper:
    """The clock's state. Nodes are named by number."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.step = 0
        self._words: dict[int, NodeWord] = {}
        self._told: dict[int, int] = {}
        self._look = 0
        self._phase = 0
        self._unanswered: set[int] = set()
        self._awake = False  # found by the look under way
        self._batch = _FIRST_BATCH

    @property
    def nodes(self) -> list[int]:
        """Those that are in."""
        return sorted(self._words)

    @property
    def participants(self) -> int:
        """Processes that are waited for."""
        return sum(word.participants for word in self._words.values())

    def join(self, node: int) -> None:
        """A node is in; it has said nothing yet."""
        self._words[node] = NodeWord()
        self._told[node] = 0
        self._phase = 0

    def leave(self, node: int) -> None:
        """A node is gone, and what it sent or was sent is waited for no more."""
        self._words.pop(node, None)
        self._told.pop(node, None)
        for word in self._words.values():
            word.sent.pop(node, None)
            word.received.pop(node, None)
        self._phase = 0

    def told(self, node: int) -> None:
        """The subnet manager has sent a message to `node`, other than those of the clock."""
        if node in self._told:
            self._told[node] += 1

    def word(self, node: int, word: NodeWord) -> None:
        """The latest word of a node."""
        if node in self._words:
            gone = (set(word.sent) | set(word.received)) - set(self._words)
            for peer in gone:
                word.sent.pop(peer, None)
                word.received.pop(peer, None)
            self._words[node] = word

    def looked(self, node: int, look: Look, asleep: bool) -> None:
        """A node's answer to a Look. Its word of the same moment comes before it."""
        if (look.number, look.phase) == (self._look, self._phase):
            self._unanswered.discard(node)
            self._awake |= not asleep

    def next(self, due_ns: int | None = None) -> Go | Turn | Look | Verdict:
        """What to do now. `due_ns`: when the subnet manager itself has something to do."""
        if not self._settled():
            self._phase = 0
            return Verdict.WAIT
        due = [at for at in (due_ns, *(word.due_ns for word in self._words.values())) if at is not None]
        if not due or any(word.woke for word in self._words.values()):
            if self._phase == 0:
                self._look += 1
                return self._begin_look(1)
            if self._unanswered:
                return Verdict.WAIT
            if self._awake:
                self._phase = 0
                return Verdict.RETRY
            if self._phase == 1:
                return self._begin_look(2)
            self._phase = 0
        if due_ns is not None and due_ns <= min(due) and self.participants:
            self.now_ns = max(self.now_ns, due_ns)
            return Turn(self.now_ns)
        return self._advance(due)

    def _begin_look(self, phase: int) -> Look:
        self._phase = phase
        self._unanswered = set(self._words)
        self._awake = False
        return Look(self._look, phase)

    def _settled(self) -> bool:
        if not self._words:
            return False
        for node, word in self._words.items():
            if word.step != self.step or word.heard != self._told[node]:
                return False
            for peer, count in word.sent.items():
                if self._words[peer].received.get(node, 0) != count:
                    return False
        return True

    def _advance(self, due: list[int]) -> Go | Verdict:
        if not due and not self.participants:
            return Verdict.UNUSED
        if due:
            self._batch = _FIRST_BATCH
            self.now_ns = max(self.now_ns, min(due))
        elif any(word.polling for word in self._words.values()):
            self.now_ns += POLL_NS * self._batch
            self._batch = min(2 * self._batch, _LAST_BATCH)
        else:
            return Verdict.BLOCKED
        self.step += 1
        return Go(self.step, self.now_ns)
