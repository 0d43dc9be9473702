"""What runs in a lab: its daemons, ranks, and what was started by hand, each with its state."""

from __future__ import annotations

from dataclasses import dataclass

from fauxrdma.lab.running.folder import LabState
from fauxrdma.lab.running.members import Member, members

__all__ = ["LabProcess", "lab_phase", "processes_of"]


@dataclass(frozen=True, slots=True)
class LabProcess:
    """One process. `role` is supervisor, subnet manager, hca, rank or exec; `state` is running, stopped (SIGSTOP), or
    how it ended. `age_s` is wall time."""

    role: str
    node: int | None
    rank: int | None
    pid: int
    state: str
    age_s: float | None
    command: str


def lab_phase(state: LabState) -> str:
    """``starting``, ``up``, ``failed`` (a daemon has ended) or ``dead`` (its keeper was killed)."""
    if not state.alive:
        return "dead"
    return "failed" if any(daemon.ended for daemon in state.daemons) else state.phase


def processes_of(state: LabState) -> list[LabProcess]:
    """Everything of a lab, in the order: keeper, daemons, ranks, what `lab exec` started. What those started in turn
    is left out."""
    found = {member.process.pid: member for member in members(state.mark)}
    shown: list[LabProcess] = []
    keeper = found.pop(state.keeper.pid, None)
    if state.alive:
        shown.append(_process("supervisor", None, None, state.keeper.pid, keeper, "running"))
    for daemon in state.daemons:
        role = "subnet manager" if daemon.node is None else "hca"
        member = found.pop(daemon.pid, None)
        shown.append(_process(role, daemon.node, None, daemon.pid, member, daemon.ended or "gone"))
    programs = [member for member in found.values() if member.parent not in found]
    ranks = [member for member in programs if member.parent == state.keeper.pid and "RANK" in member.environment]
    by_hand = [member for member in programs if member not in ranks]
    for role, group in (("rank", sorted(ranks, key=lambda each: int(each.environment["RANK"]))), ("exec", by_hand)):
        for member in group:
            node, rank = member.environment.get("FAUXRDMA_NODE"), member.environment.get("RANK")
            shown.append(_process(role, _number(node), _number(rank), member.process.pid, member, "gone"))
    return shown


def _process(
    role: str, node: int | None, rank: int | None, pid: int, member: Member | None, otherwise: str
) -> LabProcess:
    if member is None:
        return LabProcess(role, node, rank, pid, otherwise, None, "")
    return LabProcess(role, node, rank, pid, member.state, round(member.age_s, 1), " ".join(member.command))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
