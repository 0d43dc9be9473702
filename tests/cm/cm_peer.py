"""One end of a connection in a process of its own, to be killed: `cm_peer.py STEP PORT GID`; says when it is there."""

from __future__ import annotations

import sys
import threading

from fauxrdma.verbs import QPCap, QPInitAttr
from fauxrdma.verbs.cm import CMID, AddrInfo
from fauxrdma.verbs.cm.parameters import RAI_PASSIVE

step, port, gid = sys.argv[1], int(sys.argv[2]), sys.argv[3]
init = QPInitAttr(cap=QPCap(4, 4))


def say(word: object) -> None:
    print(word, flush=True)


if step == "connecting":
    active = CMID(AddrInfo(dst=gid, dst_service=port), init)
    threading.Thread(target=active.connect, daemon=True).start()
    say("asked")
else:
    listener = CMID(AddrInfo(src_service=port, flags=RAI_PASSIVE), init)
    listener.listen()
    say(listener.port)
    if step != "listening":
        end = listener.get_request()
        if step == "established":
            end.accept()
        say(step)
threading.Event().wait()
