"""The bugs that run_mutants.py plants: each replaces one text of one module by another.

`first` names the tests most likely to notice (run before the rest, to save time); it is no part of the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One planted bug. `survives_because` is said of those that no test can or need notice."""

    name: str
    path: str
    old: str
    new: str
    first: tuple[str, ...] = ()
    survives_because: str = ""


REQUESTER = "fauxrdma/hca/requester.py"
RESPONDER = "fauxrdma/hca/responder.py"
ENGINE = "fauxrdma/hca/engine.py"
STATES = "fauxrdma/ib/qp_states.py"
REGIONS = "fauxrdma/memory/regions.py"
HEADERS = "fauxrdma/wire/headers.py"
RINGS = "fauxrdma/abi/rings.py"
EXPRESS = "fauxrdma/hca/express.py"
ATTRIBUTES = "fauxrdma/ib/attributes.py"
ATOMICS = "fauxrdma/hca/atomics.py"
RESPONSES = "fauxrdma/hca/responses.py"
SEND_WORK = "fauxrdma/hca/send_work.py"
SEND_FRAMES = "fauxrdma/hca/send_frames.py"
LOCAL_WORK = "fauxrdma/hca/local_work.py"
WINDOWS = "fauxrdma/memory/windows.py"
LATE_BYTES = "fauxrdma/hca/late_bytes.py"
UNRELIABLE = "fauxrdma/hca/unreliable.py"
UC = "fauxrdma/hca/uc.py"
SRQ = "fauxrdma/hca/srq.py"
UD = "fauxrdma/hca/ud.py"
DATAGRAMS = "fauxrdma/hca/datagrams.py"
A1 = ("tests/semantics/test_qp_transitions.py",)
A2 = ("tests/semantics/test_operations.py",)
A3 = ("tests/semantics/test_completion_statuses.py",)
RC_TESTS = ("tests/hca/test_rc_protocol.py", "tests/hca/test_rc_model.py")

MUTANTS: list[Mutant] = [
    # ---- the state machine ----
    Mutant("masks: a missing attribute is accepted", STATES, "    if missing:\n", "    if False:\n", A1),
    Mutant("masks: a foreign attribute is accepted", STATES, "    if extra:\n", "    if False:\n", A1),
    Mutant("transitions: illegal ones are legal", STATES, "        if found is None:\n", "        if False:\n", A1),
    Mutant("cur_qp_state is not compared", STATES, "cur_state != current", "False", A1),
    Mutant("the state is set before the check", ENGINE,
           "        qp.apply(attr, mask)\n        old, qp.state = qp.state, new\n",
           "        qp.apply(attr, mask)\n        old, qp.state = qp.state, qp.state if new == 3 and qp.state == 2 else new\n",
           A1),
    Mutant("no flush on the way to ERR", ENGINE,
           "        elif new == QpState.IBV_QPS_ERR:\n            self._flush(qp, WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)\n",
           "        elif new == QpState.IBV_QPS_ERR:\n            pass\n", A3),
    Mutant("RESET keeps what is posted", ENGINE,
           "            while qp.sq.fetch() is not None or qp.rq.fetch() is not None:\n",
           "            while False:\n", A3),
    Mutant("posts in ERR are not flushed", ENGINE,
           "                if qp.state == _ERR:\n                    self._flush(qp, WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)\n",
           "                if qp.state == _ERR:\n                    pass\n", A3),
    Mutant("SQD starts new requests", REQUESTER,
           "return state == _SQD and self.cut_i < len(self.wqes)", "return state == _SQD", ("tests/hca",)),
    # ---- bytes of a WRITE that land last ----
    Mutant("a WRITE's late bytes land after its acknowledgement", RESPONDER,
           "            elif self.late.ended(now):\n", "            elif self.late.ended(now) and not frame.ack_req:\n",
           ("tests/hca/test_write_order.py",)),
    Mutant("an immediate does not wait for late bytes", RESPONDER,
           "                self.late.put()\n                self._deliver", "                self._deliver",
           ("tests/hca/test_write_order.py",)),
    Mutant("what follows a WRITE does not wait for its late bytes", RESPONDER,
           "        if self.late.until_ns is not None:\n            self.late.put() ", "        if False:\n            self.late.put() ", ("tests/hca/test_write_order.py",)),
    Mutant("the express lane overtakes late bytes", EXPRESS,
           "        or responder.late.until_ns is not None\n", "", ("tests/hca/test_write_order.py",)),
    Mutant("late bytes land after deregistration", LATE_BYTES,
           "if self._kept is None or self._kept[0].obj is not memory:", "if True:", ("tests/hca/test_write_order.py",)),
    Mutant("all WRITEs land in order", LATE_BYTES, "or self.choices.getrandbits(_BITS)", "or True",
           ("tests/hca/test_write_order.py",)),
    # ---- completions ----
    Mutant("unsignaled requests complete", REQUESTER,
           "            if wqe.flags & _SIGNALED or self.qp.sq_sig_all:\n                out",
           "            if True:\n                out", A2),
    Mutant("sq_sig_all is ignored", REQUESTER,
           "            if wqe.flags & _SIGNALED or self.qp.sq_sig_all:\n                out",
           "            if wqe.flags & _SIGNALED:\n                out", A2),
    Mutant("the failing request is flushed like the others", REQUESTER,
           "            status = WcStatus.IBV_WC_WR_FLUSH_ERR\n", "            status = status\n", A3),
    Mutant("what is still in the ring is not flushed", REQUESTER,
           "        while (wqe := self.qp.sq.fetch()) is not None:\n            self.wqes.append(wqe)\n", "", A3),
    Mutant("a solicited receive wakes nobody", RESPONDER, "wc, frame.solicited))", "wc))", ("tests/hca",)),
    Mutant("immediate data in host order", HEADERS, '_IMM = struct.Struct("!I")', '_IMM = struct.Struct("<I")',
           ("tests/wire",)),
    Mutant("receives are not flushed", RESPONDER,
           "        wqe = self._receive if self._receive is not None else self.qp.rq.fetch()\n        self._receive = None\n",
           "        wqe = None\n        self._receive = None\n", A3),
    # ---- keys and ranges ----
    Mutant("an lkey is accepted as an rkey", REGIONS,
           "        region = self._by_rkey.get(rkey)\n", "        region = self._by_rkey.get(rkey) or self._by_lkey.get(rkey)\n", A3),
    Mutant("an rkey is accepted as an lkey", REGIONS,
           "        region = self._by_lkey.get(lkey)\n", "        region = self._by_lkey.get(lkey) or self._by_rkey.get(lkey)\n", A3),
    Mutant("the last byte is outside", REGIONS, "offset + length > region.length", "offset + length >= region.length", A3),
    Mutant("one byte past the end is inside", REGIONS,
           "offset + length > region.length", "offset + length > region.length + 1", A3),
    Mutant("before the start is not checked", REGIONS, "if offset < 0 or", "if", A3),
    Mutant("domains are not compared", REGIONS, "        if region.pd is not pd:\n", "        if False:\n", A3),
    Mutant("remote access is not checked", REGIONS, "        if need & ~region.access:\n", "        if False:\n", A3),
    Mutant("keys stay valid after deregistration", REGIONS,
           "        del self._by_rkey[region.rkey]\n", "", ("tests/memory",)),
    # ---- lengths ----
    Mutant("a long SEND is cut to the receive", RESPONDER,
           "        if offset + frame.nbytes > room:\n", "        if False:\n", A3),
    Mutant("a WRITE longer than its RETH", RESPONDER,
           "        if end > total or (frame.opcode in _ENDS and end != total):\n", "        if False:\n", ("tests/hca",)),
    Mutant("byte_len is the last frame's", RESPONDER, "        wc.byte_len = length\n", "        wc.byte_len = frame.nbytes\n", A2),
    # ---- PSNs, acknowledgements, retries ----
    Mutant("PSNs do not wrap", HEADERS, "    return (psn + count) & PSN_MASK\n", "    return psn + count\n", RC_TESTS),
    Mutant("PSN distance does not wrap", HEADERS,
           "    return ((a - b + 0x800000) & PSN_MASK) - 0x800000\n", "    return a - b\n", RC_TESTS),
    Mutant("a PSN per frame, not per packet", HEADERS,
           "    return max(1, -(-nbytes // mtu))\n", "    return 1\n", RC_TESTS),
    Mutant("duplicates are executed again", RESPONDER,
           "Verdict.OUT_OF_SEQUENCE if ahead > 0 else Verdict.DUPLICATE\n            return None",
           "Verdict.OUT_OF_SEQUENCE if ahead > 0 else Verdict.ACCEPT\n            if ahead > 0:\n                return None",
           RC_TESTS),
    Mutant("a gap is accepted", RESPONDER,
           "        if ahead:\n", "        if ahead < 0:\n", RC_TESTS),
    Mutant("no NAK for a gap", RESPONDER, "            if not self._nak_sent:\n", "            if False:\n", RC_TESTS),
    Mutant("a NAK for every frame behind a gap", RESPONDER,
           "            if not self._nak_sent:\n", "            if True:\n", RC_TESTS),
    Mutant("duplicates are not acknowledged", RESPONDER,
           "        self._acknowledge(AethSyndrome.ACK | 0x1F, psn_add(self.expected_psn, -1), out)\n\n",
           "        return\n\n", RC_TESTS),
    Mutant("one retry too many", REQUESTER, "        if self.retries_left == 0:\n            attr",
           "        if self.retries_left == -1:\n            attr", A3),
    Mutant("one retry too few", REQUESTER, "        if self.retries_left == 0:\n            attr",
           "        if self.retries_left <= 1:\n            attr", A3),
    Mutant("progress does not restore the retries", REQUESTER,
           "        self.retries_left = self.qp.attr.retry_cnt\n        self.rnr_left", "        self.rnr_left", RC_TESTS),
    Mutant("RNR retries are not counted", REQUESTER, "                self.rnr_left -= 1\n", "", A3),
    Mutant("RNR counted one short", REQUESTER, "                if self.rnr_left == 0:\n",
           "                if self.rnr_left <= 1:\n", A3),
    Mutant("rnr_retry 7 is a number", REQUESTER, "            if self.qp.attr.rnr_retry != 7:\n", "            if True:\n", A3),
    Mutant("RNR delay is not waited", REQUESTER, "            self.rnr_until_ns = now + RNR_TIMER_NS[code]\n",
           "            self.rnr_until_ns = now\n", RC_TESTS),
    Mutant("the RNR timer is the requester's", RESPONDER,
           "AethSyndrome.RNR_NAK | self.qp.attr.min_rnr_timer", "AethSyndrome.RNR_NAK | 12", RC_TESTS),
    Mutant("the RNR table is shifted", ATTRIBUTES, "    655.36, 0.01,", "    0.01, 655.36,", ("tests/ib", "tests/hca")),
    Mutant("timeout 0 is short", ATTRIBUTES, "return 0 if timeout == 0 else ACK", "return ACK", RC_TESTS),
    Mutant("the ACK timer never fires", REQUESTER,
           "        self.deadline_ns = now + timeout_ns if timeout_ns else None\n", "        self.deadline_ns = None\n", A3),
    Mutant("go back to the start of the message", REQUESTER,
           "            wqe.sent = max(0, psn_diff(psn, wqe.first_psn)) * self.qp.mtu\n", "            wqe.sent = 0\n", RC_TESTS),
    Mutant("an old ACK counts", REQUESTER,
           "            if self._is_unacked(frame.psn):\n",
           "            if psn_diff(frame.psn, self.acked_psn) > 0:\n", RC_TESTS),
    Mutant("half of all PSNs are too many", REQUESTER, "if others and others + packets > _HALF:", "if False:",
           ("tests/hca/test_long_messages.py",)),
    Mutant("the fence is ignored", REQUESTER, "(wqe.flags & _FENCE and not wqe.cut)", "False", A2),
    # ---- who talks to whom ----
    Mutant("frames of strangers are heard", ENGINE,
           "        if qp is None or frame.slid != qp.dlid:\n            return None\n",
           "        if qp is None:\n            return None\n", ("tests/hca",)),
    Mutant("a queue pair receives in INIT", RESPONDER,
           "_RECEIVING = (QpState.IBV_QPS_RTR,", "_RECEIVING = (QpState.IBV_QPS_INIT, QpState.IBV_QPS_RTR,", ("tests/hca",), survives_because="a queue pair in INIT has no peer yet: no frame is from its LID"),
    Mutant("a queue pair in ERR receives", RESPONDER,
           "_RECEIVING = (QpState.IBV_QPS_RTR,", "_RECEIVING = (QpState.IBV_QPS_ERR, QpState.IBV_QPS_RTR,", A3),
    Mutant("no event for a refused request", RESPONDER,
           "            out.append(AsyncEvent(kind, self.qp.qpn, reason))\n", "            pass\n", A3),
    Mutant("the responder stays up after a NAK", ENGINE,
           "            if responder.finish(frame, now, out):\n                self._fail",
           "            if responder.finish(frame, now, out) and False:\n                self._fail", A3),
    # ---- rings ----
    Mutant("a completion is pushed over the oldest", RINGS,
           "        if producer - words[L.CQ_CONSUMER] >= self.entries:\n", "        if False:\n", ("tests/abi",)),
    Mutant("solicited-only wakes for all", RINGS,
           "(armed == L.ARMED_SOLICITED and solicited_or_error)", "armed == L.ARMED_SOLICITED", ("tests/abi",)),
    Mutant("a slot is freed early", RINGS,
           "        words[L.QP_SQ_CONSUMER] = index + 1\n        return index, (wr_id, opcode",
           "        words[L.QP_SQ_CONSUMER] = index + 2\n        return index, (wr_id, opcode", ("tests/abi",)),
    # ---- what moved ----
    Mutant("ranges of attributes are not checked", ENGINE, "        attr.check_ranges(mask, self.attributes)\n", "", A1),
    Mutant("solicited is lost on the way", SEND_FRAMES, "        frame.solicited = bool(wqe.flags & _SOLICITED)\n", "", ("tests/hca",)),
    Mutant("a READ completes at its acknowledgement", REQUESTER,
           "            if wqe.opcode in ANSWERED:\n                if not wqe.answered:\n                    break\n            elif",
           "            if", A2),
    Mutant("queue pair access is not checked", RESPONDER, "        if not qp.attr.qp_access_flags & need:\n", "        if False:\n", A3),
    Mutant("freed indices come back at once", REGIONS, "        self._freed.append(key >> 8)\n", "        self._indices.discard(key >> 8)\n",
           ("tests/memory",)),
    Mutant("remote write without local write", REGIONS,
           "    if access & remote_writes and not access & AccessFlags.IBV_ACCESS_LOCAL_WRITE:\n", "    if False:\n", ("tests/memory",)),
    Mutant("unknown access flags are taken", REGIONS, "    if access & ~_KNOWN_FLAGS:\n", "    if False:\n", ("tests/memory",)),
    Mutant("zero length needs a key", RESPONDER, "        if length == 0:\n            return None\n        view = self.keys.remote",
           "        view = self.keys.remote", A3),
    Mutant("max_rd_atomic is ignored", REQUESTER, "(wqe.opcode in ANSWERED and self.outstanding_reads >= qp.attr.max_rd_atomic)",
           "False", A2),
    Mutant("max_dest_rd_atomic is ignored", RESPONDER, "        elif self.jobs.outstanding >= limit:\n", "        elif False:\n", A3),
    Mutant("duplicates count as outstanding", RESPONSES, "sum(not job.again for job in self._jobs)", "len(self._jobs)",
           ("tests/hca/test_rc_liveness.py",)),
    Mutant("an unfenced WRITE never overtakes", RESPONDER, "and self.choices.getrandbits(1):", "and False:",
           ("tests/hca/test_read_order.py",)),
    Mutant("held answers are held for ever", ENGINE, "            if qpn < 0:  # answers or bytes were held\n                if ",
           "            if qpn < 0:  # answers or bytes were held\n                if False and ",
           ("tests/hca/test_read_order.py",)),
    Mutant("READ responses overtake each other", RESPONSES,
           "        job = self._jobs[0]\n        qp = self.qp\n", "        job = self._jobs[-1]\n        qp = self.qp\n", A2),
    Mutant("zero-based regions are not", REGIONS, "offset = addr if region.access & _ZERO_BASED else addr - region.base",
           "offset = addr - region.base", ("tests/memory", "tests/hca")),
    Mutant("a receive with a refused immediate is lost", RESPONDER,
           "self._refuse(code, reason, WcStatus.IBV_WC_LOC_ACCESS_ERR)", "pass", ("tests/hca",)),
    Mutant("another path MTU goes through", RESPONDER,
           "        if frame.mtu and frame.mtu != self.qp.mtu_code and not self._one_packet(frame):\n", "        if False:\n",
           ("tests/hca",)),
    Mutant("SQD never says that it is drained", ENGINE,
           "        if qp.tell_drained:\n            self._tell_drained(qp, out)\n        self._schedule", "        self._schedule", ("tests/hca",)),
    Mutant("COMM_EST with every packet", ENGINE, "                qp.told_established = True\n", "", ("tests/hca",)),
    Mutant("a deregistered region keeps its pieces", ENGINE, "            if responder.revoke(memory):\n", "            if False:\n",
           ("tests/hca",)),
    # ---- atomics ----
    Mutant("atomics in network order", ATOMICS, "    original = int.from_bytes(bytes(word), sys.byteorder)\n",
           "    original = int.from_bytes(bytes(word), 'big')\n", ("tests/semantics/test_atomics.py",)),
    Mutant("the original comes back in network order", ATOMICS, '"big" if big_endian else sys.byteorder', '"big"',
           ("tests/semantics/test_atomics.py",)),
    Mutant("FETCH_ADD does not wrap", ATOMICS, "original + swap_add & _MASK", "min(original + swap_add, _MASK)",
           ("tests/semantics/test_atomics.py",)),
    Mutant("swaps whatever is there", ATOMICS, "    elif original == compare:\n", "    else:\n", ("tests/semantics/test_atomics.py",)),
    Mutant("an unaligned atomic is done", RESPONDER, "        elif frame.va % ATOMIC_BYTES:\n", "        elif False:\n",
           ("tests/semantics/test_atomics.py",)),
    Mutant("an atomic needs only remote write", RESPONDER,
           "self._resolve(frame.va, ATOMIC_BYTES, frame.rkey, _REMOTE_ATOMIC)",
           "self._resolve(frame.va, ATOMIC_BYTES, frame.rkey, _REMOTE_WRITE)", ("tests/semantics/test_atomics.py",)),
    Mutant("a duplicate atomic is executed again", RESPONDER,
           "            self.jobs.rewind(frame.psn)\n            self.jobs.repeat_atomic(frame.psn)\n",
           "            self.jobs.rewind(frame.psn)\n            view = self._resolve(frame.va, ATOMIC_BYTES, frame.rkey, _REMOTE_ATOMIC)\n"
           "            self.jobs.add_atomic(frame.psn, execute_atomic(frame.opcode, view, frame.swap_add, frame.compare))\n"
           "            self._verdict = Verdict.DUPLICATE\n", ("tests/hca",)),
    Mutant("only the last atomic is remembered", RESPONSES, "        while len(self._replay) > self.qp.attr.max_dest_rd_atomic:\n",
           "        while len(self._replay) > 1:\n", ("tests/hca",)),
    Mutant("an atomic's SGE may have any length", SEND_WORK,
           "    if opcode in ANSWERED and opcode != _READ and wqe.length != ATOMIC_BYTES:\n", "    if False:\n",
           ("tests/semantics/test_atomics.py",)),
    Mutant("answers of before a go-back are sent, too", RESPONDER,
           "            # Executed again (9.7.4.4.1).\n            self.jobs.rewind(frame.psn)\n", "", ("tests/hca",),
           survives_because="the requester drops them by their PSN: only traffic is wasted"),
    # ---- memory windows ----
    Mutant("a type 2 window works on every queue pair", WINDOWS, "        if window.qpn not in (0, qpn):\n", "        if False:\n", ("tests/hca",)),
    Mutant("a bound type 2 window is bound again", WINDOWS, "            if window.region is not None:\n                return Fault(f\"rkey",
           "            if False:\n                return Fault(f\"rkey", ("tests/hca",)),
    Mutant("binding needs no right", WINDOWS, "        if not region.access & _MW_BIND:\n", "        if False:\n", ("tests/hca",)),
    Mutant("a window may leave its region", WINDOWS, "        if offset < 0 or offset + length > region.length:\n", "        if False:\n",
           ("tests/hca",)),
    Mutant("a window grants its whole region", WINDOWS, "        if offset < 0 or offset + length > window.length:\n",
           "        if False:\n", ("tests/hca",)),
    Mutant("a window grants everything", WINDOWS, "        if need & ~window.access:\n", "        if False:\n", ("tests/hca",)),
    Mutant("an old window key stays valid", WINDOWS, "        if window is None or window.rkey != rkey:\n",
           "        if window is None:\n", ("tests/hca",)),
    Mutant("a bound region can be deregistered", REGIONS, "        if region.windows:\n", "        if False:\n", ("tests/hca",)),
    Mutant("invalidation takes nothing away", WINDOWS, "        self._unbind(self._by_index[rkey >> 8])\n", "        pass\n", ("tests/hca",)),
    Mutant("anybody may invalidate", WINDOWS, "        if window.pd is not pd or window.qpn != qpn:\n", "        if False:\n", ("tests/hca",)),
    Mutant("windows outlive their queue pair", ENGINE, "            self.keys.windows.queue_pair_gone(qpn)\n", "", ("tests/hca",)),
    Mutant("a writing window on memory that may not be written", WINDOWS,
           "        if access & _WRITES and not region.access & _LOCAL_WRITE:\n", "        if False:\n", ("tests/hca",)),
    # ---- UC ----
    Mutant("UC completes before the last frame", UNRELIABLE, "        if wqe.cut:\n", "        if True:\n", ("tests/hca",)),
    Mutant("UC goes to ERR for a local error", ENGINE, "        if qp.qp_type == _RC:\n            self._fail", "        if True:\n            self._fail", ("tests/hca",)),
    Mutant("no LAST_WQE event", ENGINE, "        if qp.srq is not None and not qp.told_last_wqe", "        if False and not qp.told_last_wqe", ("tests/hca",)),
    Mutant("LAST_WQE with every flush", ENGINE, "            qp.told_last_wqe = True\n", "", ("tests/hca",)),
    Mutant("CQ overflow stops nobody", ENGINE, "        for qp in up:\n            qp.state = _ERR\n        for qp in up:\n            self._fail(qp, WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)\n", "", ("tests/hca",)),
    Mutant("UC writes half a message twice", UC, "        self.expected_psn = psn_add(frame.psn, packets_in(frame.nbytes, self.qp.mtu))\n",
           "        self.expected_psn = frame.psn\n", ("tests/hca",)),
    Mutant("UC access is not checked", UC, "        if not qp.attr.qp_access_flags & _REMOTE_WRITE:\n", "        if False:\n", ("tests/hca",)),
    Mutant("UC byte_len is the last frame's", UC, "        wc.byte_len = length\n", "        wc.byte_len = frame.nbytes\n", A2),
    # ---- SRQ ----
    Mutant("no SRQ limit event", SRQ, "            self.limit_reached = True\n", "            pass\n", ("tests/hca",)),
    Mutant("the SRQ limit event comes again", SRQ, "            self.limit = 0\n            self.limit_reached", "            self.limit_reached",
           ("tests/hca",)),
    Mutant("a queue pair in ERR flushes the SRQ", SRQ,
           "        if self.qp.state not in _RECEIVING:\n            return None\n", "", ("tests/hca",)),
    Mutant("the SRQ limit counts one short", SRQ, "        if len(self.source) < self.limit:\n", "        if len(self.source) <= self.limit:\n",
           ("tests/hca",)),
    # ---- UD ----
    Mutant("the Q_Key is ignored", UD, "        if frame.qkey != qp.attr.qkey:\n", "        if False:\n", ("tests/semantics/test_datagrams.py",)),
    Mutant("byte_len without the forty bytes", UD, "        wc.byte_len = GRH_BYTES + frame.nbytes\n", "        wc.byte_len = frame.nbytes\n",
           ("tests/semantics/test_datagrams.py",)),
    Mutant("the payload begins at zero", UD, "pieces = slice_pieces(self._pieces, GRH_BYTES, frame.nbytes)",
           "pieces = slice_pieces(self._pieces, 0, frame.nbytes)", ("tests/semantics/test_datagrams.py",)),
    Mutant("forty bytes need no room", UD, "        if GRH_BYTES + frame.nbytes > room:\n", "        if frame.nbytes > room:\n",
           ("tests/semantics/test_datagrams.py",)),
    Mutant("the top bit of a Q_Key is a bit", UD, "qp.attr.qkey if wqe.swap & _OWN_QKEY else wqe.swap", "wqe.swap",
           ("tests/semantics/test_datagrams.py",)),
    Mutant("a datagram of any length", UD, "            if wqe.length > self._port.mtu:\n", "            if False:\n",
           ("tests/semantics/test_datagrams.py",)),
    Mutant("GRH is always claimed", UD, "int(WcFlags.IBV_WC_GRH) if frame.grh else 0", "int(WcFlags.IBV_WC_GRH)",
           ("tests/semantics/test_datagrams.py",)),
    Mutant("an address handle of another domain", UD, "        elif handle.pd is not self.qp.pd:\n", "        elif False:\n", ("tests/hca",)),
    Mutant("datagrams that were dropped are not counted", UD, "            counters.no_receive += 1\n", "", ("tests/hca",)),
    Mutant("connected queue pairs hear datagrams", DATAGRAMS, "        if qp is None or qp.qp_type != QpType.IBV_QPT_UD:\n",
           "        if qp is None:\n", ("tests/hca",)),
    Mutant("a multicast reaches one queue pair", DATAGRAMS, "return self.multicast.queue_pairs(dgid) if dgid is not None else ()",
           "return self.multicast.queue_pairs(dgid)[:1] if dgid is not None else ()", ("tests/hca",)),
    Mutant("the destination GID is not compared", DATAGRAMS, "        if dgid is not None and all(dgid != gid for gid, _ in self.port.gids):\n",
           "        if False:\n", ("tests/hca",)),
    # ---- the express lane ----
    Mutant("express: any PSN", EXPRESS, "        psn != responder.expected_psn\n        or responder", "        responder", ("tests/hca",)),
    Mutant("express: access is not checked", EXPRESS,
           "        or not qp.attr.qp_access_flags & _REMOTE_WRITE\n", "", ("tests/hca",)),
    Mutant("express: the fence is ignored", EXPRESS, "    if flags & _FENCE:\n        return None\n", "", ("tests/hca",)),
]  # fmt: skip
