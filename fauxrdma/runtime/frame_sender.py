"""What the data path asks of whoever sends its frames: the unshaped or the paced sender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.flows import Flow
from fauxrdma.runtime.peer_links import PeerLink
from fauxrdma.wire.fabric_messages import PathAnswer
from fauxrdma.wire.headers import Frame

__all__ = ["FrameSender", "Offer"]

Offer = Callable[[Flow, int], Flow | None]
"""`offer(flow, max_payload)` has the engine send one burst of at most that many bytes. It returns the flow that the
queue pair goes on with: this one, another when UD turns to another destination, None when it has no more (it says
WantsLink again when it has)."""


class FrameSender(ABC):
    """Takes frames from engines and gives them to links, when these have room or when the model says so."""

    @abstractmethod
    def send(self, hca: EmulatedHca, qpn: int, frame: Frame) -> None:
        """Send a frame of a queue pair's, or keep it until its time."""

    @abstractmethod
    def queue(self, flow: Flow) -> None:
        """A flow has something to send: pull it as far as there is room."""

    @abstractmethod
    def opened(self, flow: Flow, path: PathAnswer | None) -> None:
        """A new flow, and what is known of its path."""

    @abstractmethod
    def path_changed(self, flow: Flow, path: PathAnswer, now: int) -> None:
        """What is sent from now on goes by another path."""

    @abstractmethod
    def forget(self, flow: Flow) -> None:
        """Drop a flow and what it had queued."""

    @abstractmethod
    def writable(self, link: PeerLink) -> None:
        """A link has room again."""

    @abstractmethod
    def link_gone(self, link: PeerLink) -> None:
        """A link was closed for good."""

    @abstractmethod
    def frames(self) -> Iterator[object]:
        """Every frame that waits here."""

    @abstractmethod
    def close(self) -> None:
        """Send nothing more."""
