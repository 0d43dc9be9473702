"""Verbs that are made to fail, for tests of error paths that no healthy machine takes."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from dataclasses import dataclass

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.wire.control import Message

__all__ = ["CLIENT_VERBS", "InjectedFailures", "destroy_verb", "request_verb", "verb_of"]

CLIENT_VERBS = frozenset(("poll_cq", "post_recv", "post_send", "post_srq_recv", "query_device", "req_notify_cq"))
"""Verbs that never reach the daemon: the application's side makes them fail."""

_REQUEST_VERBS = {V.CreateChannel: "create_comp_channel", V.QueryPath: "query_path"}
_DESTROY_VERBS = {"mr": "dereg_mr", "pd": "dealloc_pd", "channel": "destroy_comp_channel", "mw": "dealloc_mw"}


def request_verb(kind: type[Message]) -> str:
    """The verb that a request carries out, as libibverbs names it without ibv_: RegMr is reg_mr."""
    return _REQUEST_VERBS.get(kind) or re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def destroy_verb(kind: str) -> str:
    """The verb that destroys a kind of object: qp is destroy_qp, mr is dereg_mr."""
    return _DESTROY_VERBS.get(kind, f"destroy_{kind}")


def verb_of(msg: Message) -> str:
    """The verb that a message asks for."""
    return destroy_verb(msg.kind) if isinstance(msg, V.Destroy) else request_verb(type(msg))


@dataclass(slots=True)
class _Failure:
    errno_: int
    after: int
    count: int


class InjectedFailures:
    """What was asked for, by verb. Falsy while there is nothing to come."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_Failure]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, verb: str, errno_: int, after: int, count: int) -> None:
        """Let `verb` succeed `after` times, then fail `count` times. Further failures of it queue up behind.

        Raises VerbsError(EINVAL) for numbers that make no sense.
        """
        if errno_ not in errno.errorcode or after < 0 or count < 1:
            raise VerbsError(
                errno.EINVAL, f"cannot inject errno {errno_} after {after} calls, {count} times: see the errno module"
            )
        self._waiting.setdefault(verb, deque()).append(_Failure(errno_, after, count))

    def check(self, verb: str) -> None:
        """The verb is called. Raises VerbsError when it is its turn to fail."""
        queue = self._waiting.get(verb)
        if queue is None:
            return
        failure = queue[0]
        if failure.after:
            failure.after -= 1
            return
        failure.count -= 1
        if not failure.count:
            queue.popleft()
            if not queue:
                del self._waiting[verb]
        raise VerbsError(failure.errno_, f"{verb} failed as asked for ({os.strerror(failure.errno_)})")
