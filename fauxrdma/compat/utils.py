"""Texts and conversions (pyverbs.utils)."""

from __future__ import annotations

from fauxrdma.compat.pyverbs_error import PyverbsUserError

__all__ = [
    "access_flags_to_str",
    "be64toh",
    "gid_str",
    "gid_str_to_array",
    "mig_state_to_str",
    "mtu_to_str",
    "qp_state_to_str",
    "qp_type_to_str",
    "rereg_error_to_str",
    "table",
]

_QP_TYPES = {
    2: "RC", 3: "UC", 4: "UD", 8: "Raw Packet", 9: "XRCD_SEND", 10: "XRCD_RECV", 0xFF: "Driver QP",
}  # fmt: skip
_QP_STATES = ("Reset", "Init", "RTR", "RTS", "SQD", "SQE", "Error", "Unknown")
_ACCESS = {
    1: "Local write", 2: "Remote write", 4: "Remote read", 8: "Remote atomic", 16: "MW bind", 32: "Zero based",
    64: "On demand", 128: "Huge pages", 1 << 20: "Relaxed ordering",
}  # fmt: skip
_REREG_ERRORS = {
    -1: "IBV_REREG_MR_ERR_INPUT", -2: "IBV_REREG_MR_ERR_DONT_FORK_NEW", -3: "IBV_REREG_MR_ERR_DO_FORK_OLD",
    -4: "IBV_REREG_MR_ERR_CMD", -5: "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW",
}  # fmt: skip


def be64toh(num: int) -> int:
    """A 64-bit number in network order, in host order."""
    return int.from_bytes(num.to_bytes(8, "little"), "big")


def gid_str(subnet_prefix: int, interface_id: int) -> str:
    """The eight words of a GID given as its two halves in network order."""
    digits = f"{be64toh(subnet_prefix):016x}{be64toh(interface_id):016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 32, 4))


def gid_str_to_array(val: str) -> list[str]:
    """The sixteen bytes of a GID as text. Raises PyverbsUserError unless it has eight words of four digits."""
    words = val.split(":")
    if len(words) != 8 or any(len(word) != 4 for word in words):
        raise PyverbsUserError(f"Invalid GID value ({val})")
    return [half for word in words for half in (word[:2], word[2:])]


def qp_type_to_str(qp_type: int) -> str:
    """RC, UC, UD."""
    return _QP_TYPES.get(qp_type, f"Unknown ({qp_type})")


def qp_state_to_str(qp_state: int) -> str:
    """Reset, Init, RTR, RTS and so on."""
    return _QP_STATES[qp_state] if 0 <= qp_state < len(_QP_STATES) else f"Unknown ({qp_state})"


def mtu_to_str(mtu: int) -> int:
    """The bytes of an MTU code; 0 for none."""
    return 128 << mtu if 1 <= mtu <= 5 else 0


def access_flags_to_str(flags: int) -> str:
    """`Local write Remote read ` for the bits of an access mask."""
    return "".join(f"{name} " for bit, name in _ACCESS.items() if flags & bit)


def mig_state_to_str(mig: int) -> str:
    """Migrated, Re-arm, Armed."""
    return {0: "Migrated", 1: "Re-arm", 2: "Armed"}.get(mig, f"Unknown ({mig})")


def rereg_error_to_str(error: int) -> str:
    """The name of what ibv_rereg_mr returns."""
    return _REREG_ERRORS.get(error, f"Unknown error ({error})")


def table(rows: dict[str, object], width: int = 22, indent: str = "") -> str:
    """Lines of a name and a value, as pyverbs' objects print themselves."""
    return "".join(f"{indent}{name:{width}}: {value!s:<20}\n" for name, value in rows.items())
