"""The page of queue-pair states, drawn from the tables that `modify_qp` obeys.

python -m fauxrdma.ib.qp_diagram > docs/qp-states.md
"""

from __future__ import annotations

from fauxrdma.ib.enums import QpAttrMask, QpState, QpType
from fauxrdma.ib.qp_states import TRANSITIONS

__all__ = ["attribute_table", "mermaid", "page"]

_ENDS = (QpState.IBV_QPS_RESET, QpState.IBV_QPS_ERR)


def _short(name: str) -> str:
    for prefix in ("IBV_QPS_", "IBV_QPT_", "IBV_QP_"):
        name = name.removeprefix(prefix)
    return name


def _names(mask: QpAttrMask) -> str:
    return ", ".join(_short(bit.name or "") for bit in QpAttrMask if bit & mask) or "-"


def mermaid(qp_type: QpType) -> str:
    """A Mermaid state diagram: transitions with the attributes they need; what happens by itself is called an error."""
    table = TRANSITIONS[qp_type]
    states = sorted({state for pair in table for state in pair})
    lines = ["stateDiagram-v2", "    [*] --> RESET"]
    for (old, new), transition in sorted(table.items()):
        needs = _names(transition.required)
        lines.append(f"    {_short(old.name)} --> {_short(new.name)}" + ("" if needs == "-" else f": {needs}"))
    recovers = QpState.IBV_QPS_SQE in states
    lines.append(f"    RTS --> {'SQE' if recovers else 'ERR'}: error")
    lines += [f"    {_short(state.name)} --> ERR" for state in states if state not in _ENDS]
    lines.append("    ERR --> RESET")
    return "\n".join(lines) + "\n"


def attribute_table(qp_type: QpType) -> str:
    """A Markdown table: transition, required attributes, optional attributes."""
    rows = ["| transition | required | optional |", "|---|---|---|"]
    for (old, new), transition in sorted(TRANSITIONS[qp_type].items()):
        required, optional = _names(transition.required), _names(transition.optional)
        rows.append(f"| {_short(old.name)} to {_short(new.name)} | {required} | {optional} |")
    return "\n".join([*rows, "| any to ERR, any to RESET | - | - |"]) + "\n"


def page() -> str:
    """docs/qp-states.md."""
    parts = [
        "# Queue-pair states\n",
        "Drawn by `python -m fauxrdma.ib.qp_diagram` from the tables that `modify_qp` obeys. `modify_qp` needs every\n"
        "required attribute in its mask and takes none that is neither required nor optional: otherwise EINVAL, and\n"
        "nothing is changed. Receives may be posted from INIT on, sends from RTS on; ERR takes and flushes both.\n"
        "RESET discards what is outstanding without completions and drops the queue pair's completions that were not\n"
        "polled.\n",
    ]
    for qp_type in TRANSITIONS:
        parts.append(f"## {_short(qp_type.name)}\n\n```mermaid\n{mermaid(qp_type)}```\n\n{attribute_table(qp_type)}")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
