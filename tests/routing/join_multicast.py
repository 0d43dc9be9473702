"""Join the host SIM_HOST of a running ibsim to the IPoIB broadcast group: `join_multicast.py SM_LID PORT_GUID`.

A process of its own, since libumad2sim attaches a process to one host: run with LD_PRELOAD=libumad2sim.so. Sends
SubnAdmSet(MCMemberRecord) (IBTA vol. 1, 15.2.5.17) over libibumad and exits with 0 if the manager grants it.
"""

from __future__ import annotations

import ctypes
import struct
import sys

_SA_CLASS, _SET, _MCMEMBER_RECORD = 3, 2, 0x38
_MGID = bytes.fromhex("ff12401bffff000000000000ffffffff")
_PREFIX = bytes.fromhex("fe80000000000000")
_MGID_PORT_STATE = 1 << 0 | 1 << 1 | 1 << 16
"""Component mask: only these fields are filled in."""
_FULL_MEMBER = 1
_GSI_QKEY = 0x80010000
_ATTEMPTS, _ANSWER_MS = 20, 1000
"""libumad2sim sends a datagram once, whatever number of retries umad_send is given, and OpenSM drops what comes before
its first sweep is over: so a request without an answer is sent again from here. Joining twice is joining once."""


def join(sm_lid: int, port_guid: int) -> int:
    """The status of the answer, 0 if the manager granted it; -1 if there was none to any attempt."""
    umad = ctypes.CDLL("libibumad.so.3")
    umad.umad_init()
    port = umad.umad_open_port(None, 1)
    agent = umad.umad_register(port, _SA_CLASS, 2, 0, None)
    head: int = umad.umad_size()
    buffer = ctypes.create_string_buffer(head + 256)
    record = struct.pack(">16s8sQIHBBHBBIBBH", _MGID, _PREFIX, port_guid, 0, 0, 0, 0, 0, 0, 0, 0, _FULL_MEMBER, 0, 0)
    status = -1
    for transaction in range(_ATTEMPTS):
        mad = struct.pack(">BBBBHHQHHI", 1, _SA_CLASS, 2, _SET, 0, 0, 0x1234 + transaction, _MCMEMBER_RECORD, 0, 0)
        mad += bytes(12) + bytes(8) + struct.pack(">HHQ", 0, 0, _MGID_PORT_STATE) + record
        buffer[head : head + len(mad)] = mad
        umad.umad_set_addr(buffer, sm_lid, 1, 0, _GSI_QKEY)
        if umad.umad_send(port, agent, buffer, 256, _ANSWER_MS, 0) < 0:
            continue
        length = ctypes.c_int(256)
        if umad.umad_recv(port, buffer, ctypes.byref(length), _ANSWER_MS) < 0:
            continue
        (status,) = struct.unpack_from(">H", buffer.raw, head + 4)
        if status == 0:
            break
    return status


if __name__ == "__main__":
    answer = join(int(sys.argv[1]), int(sys.argv[2], 16))
    sys.exit(f"join_multicast: status {answer:#x}" if answer else 0)
