"""Flow steering of Ethernet adapters (pyverbs.flow): not offered. Attribute classes can be made."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import not_offered

__all__ = ["Flow", "FlowAction", "FlowAttr"]


class FlowAttr(PyverbsObject):
    """What a flow would be made of; specs are appended to `specs`."""

    def __init__(
        self, num_of_specs: int = 0, flow_type: int = 0, priority: int = 0, port: int = 1, flags: int = 0
    ) -> None:
        self.num_of_specs = num_of_specs
        self.type = flow_type
        self.priority = priority
        self.port = port
        self.flags = flags
        self.specs: list[Any] = []


class Flow(PyverbsCM):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, qp: Any, flow_attr: FlowAttr) -> None:
        not_offered("Flow creation failed", "flow steering")


class FlowAction(PyverbsObject):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, *_: Any, **__: Any) -> None:
        not_offered("Flow action creation failed", "flow steering")
