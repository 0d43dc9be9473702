"""Rules for frames: which of them are lost, doubled, delayed, overtaken, or find the receiver not ready.

A frame is what one HCA sends at a time: one packet, or a few of the same message in a row (at most 4096 bytes of
payload in a `Pair`; with a smaller path MTU it stands for several packets, and their PSNs).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fauxrdma.errors import ConfigError
from fauxrdma.ib.enums import BthOpcode, Mtu
from fauxrdma.wire.headers import Frame, packets_in, psn_diff

__all__ = ["ACTIONS", "FaultRule", "RuleBook", "frames_named"]

ACTIONS = ("drop", "duplicate", "delay", "reorder", "rnr")
DIRECTIONS = ("a->b", "b->a")
_CARRIES_RECEIVE = ("SEND", "RDMA_WRITE_LAST_WITH_IMMEDIATE", "RDMA_WRITE_ONLY_WITH_IMMEDIATE")


def frames_named(name: str) -> frozenset[int]:
    """The BTH opcodes that a name stands for: ``RC_RDMA_WRITE_ONLY`` for one, ``RDMA_WRITE``, ``SEND``, ``ACKNOWLEDGE``
    or ``RDMA_READ_RESPONSE`` for all that begin so, whatever the transport. Raises ConfigError for what begins none."""
    wanted = name.upper()
    found = frozenset(
        int(code) for code in BthOpcode if code.name == wanted or code.name.split("_", 1)[1].startswith(wanted)
    )
    if not found:
        known = sorted({code.name.split("_", 1)[1] for code in BthOpcode})
        raise ConfigError(f"no frame is called {name!r}: there are {', '.join(known)}, and RC_, UC_, UD_ before them")
    return found


@dataclass(eq=False)
class FaultRule:
    """One rule: what happens (`action`), and to which frames. All that is given must hold.

    `opcode`: a name (`frames_named`). `psn`: a packet sequence number that the frame carries. `nth`: which of the
    frames that fit so far, counted from 1, or several of them. `direction`: ``a->b`` or ``b->a``. `probability`: of
    each, 0..1. `where(frame)`: any other condition on `fauxrdma.wire.headers.Frame`. `times`: how often at most.
    `by_ns`: how much later, in fabric time. Raises ConfigError for what cannot be.
    """

    action: str
    opcode: str | None = None
    psn: int | None = None
    nth: int | Collection[int] | None = None
    direction: str | None = None
    probability: float | None = None
    where: Callable[[Frame], bool] | None = None
    times: int | None = None
    by_ns: int = 0
    hits: int = 0
    """Frames that it was applied to."""
    seen: int = 0
    """Frames that fitted, those that `nth` or `probability` left alone included."""
    removed: bool = False
    _codes: frozenset[int] = field(default=frozenset(), init=False, repr=False)
    _numbers: Collection[int] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ConfigError(f"a frame cannot be told to {self.action!r}: known are {', '.join(ACTIONS)}")
        if self.direction is not None:
            given, self.direction = self.direction, self.direction.replace(" ", "")
            if self.direction not in DIRECTIONS:
                raise ConfigError(f"direction is a->b or b->a, got {given!r}")
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise ConfigError(f"a probability is from 0 to 1, got {self.probability!r}")
        self._numbers = () if self.nth is None else (self.nth,) if isinstance(self.nth, int) else self.nth
        if any(number < 1 for number in self._numbers):
            raise ConfigError(f"frames are counted from 1, got nth={self.nth!r}")
        if self.times is not None and self.times < 1:
            raise ConfigError(f"times is at least 1, got {self.times!r}")
        if self.by_ns < 0:
            raise ConfigError(f"a frame cannot come {-self.by_ns} ns before it was sent")
        self._codes = frames_named(self.opcode) if self.opcode is not None else frozenset()

    def remove(self) -> None:
        """Let the rule apply no more. Idempotent."""
        self.removed = True

    def takes(self, frame: Frame, direction: str, rng: random.Random) -> bool:
        """Whether it applies to this frame, which is counted."""
        if self.removed or (self._codes and frame.opcode not in self._codes):
            return False
        if self.direction is not None and self.direction != direction:
            return False
        if self.psn is not None and not 0 <= psn_diff(self.psn, frame.psn) < _packets(frame):
            return False
        if self.action == "rnr" and not _consumes_receive(frame):
            return False
        if self.where is not None and not self.where(frame):
            return False
        self.seen += 1
        if self.nth is not None and self.seen not in self._numbers:
            return False
        if self.probability is not None and rng.random() >= self.probability:
            return False
        self.hits += 1
        if self.times is not None and self.hits >= self.times:
            self.removed = True
        return True


class RuleBook:
    """The rules in force, in the order in which they were made: the first that takes a frame decides."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed}/frames")
        self.rules: list[FaultRule] = []

    def verdict(self, frame: Frame, direction: str) -> FaultRule | None:
        """The rule that takes a frame; None when it is left alone."""
        for rule in self.rules:
            if rule.takes(frame, direction, self._rng):
                return rule
        return None


def _packets(frame: Frame) -> int:
    return packets_in(frame.nbytes, Mtu(frame.mtu).nbytes) if frame.mtu else 1


def _consumes_receive(frame: Frame) -> bool:
    name = BthOpcode(frame.opcode).name
    return name.startswith("RC_") and name.split("_", 1)[1].startswith(_CARRIES_RECEIVE)
