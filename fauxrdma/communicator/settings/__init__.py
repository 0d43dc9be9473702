"""What users set in the environment for collectives: NCCL's variables where they mean something here, and our own.

Everything is parsed before the first collective, and what makes no sense is refused with the value and what is allowed:
NCCL warns and goes on with a default, which on a model of a fabric would measure something else than was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fauxrdma.collectives.channels import PREFER_SAME_NIC
from fauxrdma.communicator.settings.algorithm_rules import (
    ALGO_VARIABLE,
    NCCL_ALGO_VARIABLE,
    AlgorithmRules,
    parse_nccl_algo,
    parse_own_algo,
)
from fauxrdma.communicator.settings.hca_filter import IB_HCA_VARIABLE, HcaFilter, parse_hca_filter
from fauxrdma.errors import ConfigError

__all__ = ["MOST_CHANNELS", "AlgorithmRules", "CollectiveSettings", "HcaFilter"]

MOST_CHANNELS = 32
"""As in NCCL since 2.5."""
_LEAST = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MIN_CTAS")
_MOST = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS")
_NO_SHARING = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
CHANNELS_VARIABLE = "FAUXRDMA_CHANNELS"
_DEBUG = ("", "version", "warn", "attn", "info", "abort", "trace", "all")


@dataclass(frozen=True)
class CollectiveSettings:
    """The settings of one process. `channels`: how many the rings are cut over. `cross_nic`: 0 the same HCA along a
    ring, 1 any, 2 the same if possible (collectives/channels.py); None when the user did not say. `pxn`: whether an
    all-to-all may hand over within nodes. `share_memory`: whether ranks of a node talk through memory they share (NCCL
    leaves them the network when both of its other ways are disabled). `hcas`: those that may be used. `algorithms`: by
    operation. `verbose`: whether rank 0 says what it does (NCCL_DEBUG=INFO)."""

    channels: int = 1
    cross_nic: int | None = None
    pxn: bool = True
    share_memory: bool = True
    hcas: HcaFilter = field(default_factory=HcaFilter)
    algorithms: AlgorithmRules = field(default_factory=AlgorithmRules)
    verbose: bool = False

    @classmethod
    def from_env(
        cls, known: Mapping[str, Collection[str]], environment: Mapping[str, str] = os.environ
    ) -> CollectiveSettings:
        """What the environment says. `known`: the algorithms of each operation. Raises ConfigError, naming variable,
        value and what is allowed, for anything else than that."""
        algorithms = AlgorithmRules()
        if environment.get(NCCL_ALGO_VARIABLE):
            algorithms = parse_nccl_algo(environment[NCCL_ALGO_VARIABLE], known)
        if environment.get(ALGO_VARIABLE):
            algorithms = parse_own_algo(environment[ALGO_VARIABLE], known).over(algorithms)
        debug = environment.get("NCCL_DEBUG", "").lower()
        if debug not in _DEBUG:
            raise ConfigError(f"NCCL_DEBUG={environment['NCCL_DEBUG']!r}: it is one of {', '.join(_DEBUG[1:]).upper()}")
        return cls(
            channels=_channels(environment),
            cross_nic=_number(environment, "NCCL_CROSS_NIC", 0, PREFER_SAME_NIC),
            pxn=not _number(environment, "NCCL_PXN_DISABLE", 0, 1),
            share_memory=not all(_number(environment, name, 0, 1) for name in _NO_SHARING),
            hcas=parse_hca_filter(environment.get(IB_HCA_VARIABLE, "")),
            algorithms=algorithms,
            verbose=debug in ("info", "trace", "all") or environment.get("FAUXRDMA_DEBUG", "") not in ("", "0"),
        )

    def with_options(self, *, channels: int | None, cross_nic: int | None) -> CollectiveSettings:
        """These settings, but what is given as an argument goes before the environment. Raises ConfigError for values
        that there are not."""
        if channels is not None and not 1 <= channels <= MOST_CHANNELS:
            raise ConfigError(f"channels={channels}: it must be from 1 to {MOST_CHANNELS}")
        if cross_nic is not None and not 0 <= cross_nic <= PREFER_SAME_NIC:
            raise ConfigError(f"cross_nic={cross_nic}: it must be 0 (same HCA), 1 (any) or 2 (same if possible)")
        return replace(
            self,
            channels=self.channels if channels is None else channels,
            cross_nic=self.cross_nic if cross_nic is None else cross_nic,
        )


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ConfigError(f"{name}={environment[name]!r}: it must be a whole number from {least} to {most}")
    return int(text)


def _channels(environment: Mapping[str, str]) -> int:
    """One channel unless something says otherwise. The old names and the new count alike; the narrowest limits win."""
    own = _number(environment, CHANNELS_VARIABLE, 1, MOST_CHANNELS)
    if own is not None:
        return own
    least = max(_those_set(environment, _LEAST, MOST_CHANNELS), default=(1, ""))
    most = min(_those_set(environment, _MOST, 10**9), default=(MOST_CHANNELS, ""))
    if least[0] > most[0]:
        raise ConfigError(
            f"{least[1]}={least[0]} asks for more channels than {most[1]}={most[0]} allows: raise the one or lower the "
            f"other, or set {CHANNELS_VARIABLE} alone"
        )
    return least[0]


def _those_set(environment: Mapping[str, str], names: tuple[str, ...], most: int) -> list[tuple[int, str]]:
    found = ((_number(environment, name, 1, most), name) for name in names)
    return [(value, name) for value, name in found if value is not None]
