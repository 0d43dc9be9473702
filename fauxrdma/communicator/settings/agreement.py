"""Settings that all ranks must have the same, and what is said when they do not.

Plans follow from them: ranks that cut their data over different numbers of channels, or by different algorithms, would
wait for messages that nobody sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fauxrdma.communicator.settings import CollectiveSettings
from fauxrdma.errors import ConfigError

__all__ = ["check_agreement", "shared_settings"]

_DEFAULT = "the default"
_NAMED = 3
"""So many differences are told one by one."""


def shared_settings(
    settings: CollectiveSettings, *, share_memory: bool, slots: int, slot_bytes: int, lanes: int
) -> dict[str, str]:
    """What must be the same, by a name that says where it is set; defaults of algorithms are left out."""
    told = {
        "number of channels (FAUXRDMA_CHANNELS, NCCL_MIN_NCHANNELS, channels=)": str(settings.channels),
        "cross-NIC policy (NCCL_CROSS_NIC, cross_nic=)": _DEFAULT
        if settings.cross_nic is None
        else str(settings.cross_nic),
        "use of PXN (NCCL_PXN_DISABLE)": "on" if settings.pxn else "off",
        "shared memory within nodes (NCCL_P2P_DISABLE and NCCL_SHM_DISABLE, share_memory=)": "on"
        if share_memory
        else "off",
        "number of staging slots (slots=)": str(slots),
        "size of staging slots (slot_bytes=)": str(slot_bytes),
        "number of lanes (lanes=)": str(lanes),
    }
    rules = settings.algorithms
    for operation in sorted({*rules.by_operation, *rules.refused}):
        name = f"algorithm of {operation} (FAUXRDMA_ALGO, NCCL_ALGO)"
        told[name] = rules.by_operation.get(operation, "none allowed")
    return told


def check_agreement(everyone: Sequence[Mapping[str, str]]) -> None:
    """Raise ConfigError, the same on all ranks, when the settings of some rank are not those of rank 0."""
    first = everyone[0]
    for rank, told in enumerate(everyone):
        differing = [
            f"{name}: {told.get(name, _DEFAULT)} instead of {first.get(name, _DEFAULT)}"
            for name in sorted({*first, *told})
            if told.get(name, _DEFAULT) != first.get(name, _DEFAULT)
        ]
        if differing:
            more = f"; and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            raise ConfigError(
                f"rank {rank} has other settings than rank 0: {'; '.join(differing[:_NAMED])}{more}. Set them alike "
                "for all ranks, as `fauxrdma run` does with its own environment"
            )
