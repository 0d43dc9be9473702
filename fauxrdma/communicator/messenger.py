"""Point-to-point operations of a communicator, on numpy arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from fauxrdma.collectives.arithmetic import Array
from fauxrdma.collectives.point_to_point import Transfer
from fauxrdma.communicator.arrays import flat_input, flat_output, put_back
from fauxrdma.communicator.messages import MessageThread
from fauxrdma.communicator.plan_runner import PlanRunner
from fauxrdma.errors import CollectiveError, LocalProtocolError

__all__ = ["Messenger", "PendingTransfer"]


class PendingTransfer:
    """A send or receive that goes on in the background. The array is the communicator's until it is done.

    `when_done` is called with it once it is, by another thread, which must not be held up.
    """

    def __init__(self, when_done: Callable[[PendingTransfer], None] | None = None) -> None:
        self.error: BaseException | None = None
        """Why it failed, once it has."""
        self.source = -1
        """Of a receive that is done: the rank it came from."""
        self._when_done = when_done
        self._event = threading.Event()

    def _finish(self, transfer: Transfer, received: Callable[[], None] | None) -> None:
        if transfer.error is not None:
            self.error = CollectiveError(transfer.error)
        elif received is not None:
            received()
        if transfer.peer is not None:
            self.source = transfer.peer
        self._event.set()
        if self._when_done is not None:
            self._when_done(self)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._event.is_set()

    def wait(self) -> int:
        """Block until it is done; returns the other rank. Raises CollectiveError when it failed."""
        self._event.wait()
        if self.error is not None:
            raise self.error
        return self.source


class Messenger(PlanRunner):
    """Sends and receives between two ranks: by tag, in order for each source and tag, independent of the collectives.

    They may be called by any thread. A send is done when the array may be changed again: for up to 32 KiB when it is on
    its way, else when the receiver has asked for it. What is received must have the size and dtype of what was sent.
    """

    _messages: MessageThread | None = None
    _message_lock = threading.Lock()

    def send(self, array: Array, destination: int, tag: int = 0) -> None:
        """Send `array` to rank `destination`, which receives it under the same tag."""
        self.isend(array, destination, tag).wait()

    def recv(self, array: Array, source: int | None = None, tag: int = 0) -> int:
        """Receive into `array` from rank `source` (None: from any rank); returns the rank it came from."""
        return self.irecv(array, source, tag).wait()

    def isend(
        self,
        array: Array,
        destination: int,
        tag: int = 0,
        *,
        dtype: str | None = None,
        timeout_s: float | None = None,
        when_done: Callable[[PendingTransfer], None] | None = None,
    ) -> PendingTransfer:
        """Begin to send; it fails after `timeout_s` (default: the communicator's). `dtype` names what the elements are,
        where the array's dtype does not say it."""
        self._check_peer("send to", destination)
        self._computing.charge()
        flat = flat_input(array)
        pending = PendingTransfer(when_done)
        transfer = Transfer(
            destination, tag, _bytes_of(flat), dtype or flat.dtype.str, flat.size, lambda t: pending._finish(t, None)
        )
        self._message_thread().submit(transfer, send=True, timeout_s=timeout_s or self.timeout_s)
        self._computing.resume()
        return pending

    def irecv(
        self,
        array: Array,
        source: int | None = None,
        tag: int = 0,
        *,
        dtype: str | None = None,
        timeout_s: float | None = None,
        when_done: Callable[[PendingTransfer], None] | None = None,
    ) -> PendingTransfer:
        """Begin to receive, from any rank when `source` is None."""
        if source is not None:
            self._check_peer("receive from", source)
        elif self.world_size == 1:
            raise LocalProtocolError("there is no other rank to receive from in a world of 1")
        self._computing.charge()
        flat = flat_output(array, copy=False)
        pending = PendingTransfer(when_done)
        transfer = Transfer(
            source,
            tag,
            _bytes_of(flat),
            dtype or flat.dtype.str,
            flat.size,
            lambda t: pending._finish(t, lambda: put_back(array, flat)),
        )
        self._message_thread().submit(transfer, send=False, timeout_s=timeout_s or self.timeout_s)
        self._computing.resume()
        return pending

    def _check_peer(self, what: str, peer: int) -> None:
        if not 0 <= peer < self.world_size:
            raise LocalProtocolError(f"cannot {what} rank {peer}: it is not a rank of {self.world_size}")
        if peer == self.rank:
            raise LocalProtocolError(f"cannot {what} rank {peer}: that is this rank; copy the array instead")

    def _message_thread(self) -> MessageThread:
        if self._closed:
            raise CollectiveError(f"rank {self.rank}: this communicator is closed")
        with self._message_lock:
            if self._messages is None:
                self._messages = MessageThread(
                    self._context, self._store, self._prefix, self.rank, self.world_size,
                    gpu=self._mesh.gpu, port=self._mesh.port, share_memory=self._share_memory,
                )  # fmt: skip
            return self._messages

    def abort(self, reason: str = "the communicator was aborted") -> None:
        """As of any communicator; sends and receives fail, too."""
        with self._message_lock:
            messages = self._messages
        if messages is not None:
            messages.abort(reason)
        super().abort(reason)

    def close(self) -> None:
        """Let what was put or sent arrive (a few seconds at most), then free everything. Idempotent; never raises."""
        with self._message_lock:
            messages, self._messages = self._messages, None
        if messages is not None:
            messages.close()
        super().close()


def _bytes_of(flat: Array) -> Array:
    return flat.view(np.uint8) if flat.size else np.empty(0, np.uint8)
