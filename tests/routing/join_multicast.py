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


def join(sm_lid: int, port_guid: int) -> int:
    """The status of the answer; -1 without one."""
    umad = ctypes.CDLL("libibumad.so.3")
    umad.umad_init()
    port = umad.umad_open_port(None, 1)
    agent = umad.umad_register(port, _SA_CLASS, 2, 0, None)
    head: int = umad.umad_size()
    buffer = ctypes.create_string_buffer(head + 256)
    record = struct.pack(">16s8sQIHBBHBBIBBH", _MGID, _PREFIX, port_guid, 0, 0, 0, 0, 0, 0, 0, 0, _FULL_MEMBER, 0, 0)
    mad = struct.pack(">BBBBHHQHHI", 1, _SA_CLASS, 2, _SET, 0, 0, 0x1234, _MCMEMBER_RECORD, 0, 0)
    mad += bytes(12) + bytes(8) + struct.pack(">HHQ", 0, 0, _MGID_PORT_STATE) + record
    buffer[head : head + len(mad)] = mad
    umad.umad_set_addr(buffer, sm_lid, 1, 0, _GSI_QKEY)
    if umad.umad_send(port, agent, buffer, 256, 3000, 2) < 0:
        return -1
    length = ctypes.c_int(256)
    if umad.umad_recv(port, buffer, ctypes.byref(length), 9000) < 0:
        return -1
    status: int = struct.unpack_from(">H", buffer.raw, head + 4)[0]
    return status


if __name__ == "__main__":
    sys.exit(min(255, join(int(sys.argv[1]), int(sys.argv[2], 16)) & 0xFFFF))
