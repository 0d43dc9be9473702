"""What is measured, in which order: sizes, types, reductions and roots, as nccl-tests takes them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from fauxrdma.perf.coll.element_types import ELEMENT_TYPES
from fauxrdma.perf.coll.operations import OPERATIONS, Case, Operation

__all__ = ["AUTO_ITERATIONS", "Sweep"]

AUTO_ITERATIONS = 20
"""nccl-tests' number of iterations; where nobody asks for a number, long ones are repeated less often."""


class Sweep(BaseModel):
    """One run of the bench, as its ranks are told it. `types` and `reductions` are names; `roots` is [-1] where there
    is none. `iterations` 0: at most 20, as few as one where they would take longer than `budget_s` seconds of wall
    time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: str
    sizes: list[int] = Field(description="bytes")
    types: list[str]
    reductions: list[str]
    roots: list[int]
    iterations: int = Field(0, ge=0)
    warm_up: int = Field(1, ge=0)
    check: int = Field(1, ge=0)
    average: int = Field(1, ge=0, le=3, description="over ranks: 0 rank 0's, 1 mean, 2 least, 3 most")
    blocking: bool = False
    verify: bool = False
    budget_s: float = 1.0

    @property
    def what(self) -> Operation:
        """The operation."""
        return OPERATIONS[self.operation]

    def groups(self, world_size: int) -> Iterator[list[Case]]:
        """The cases in order, those that differ only in size together. Types without a reduction are left out."""
        for name in self.types:
            element = ELEMENT_TYPES[name]
            for reduction in self.reductions if self.what.reduces else [""]:
                if reduction and reduction not in element.reductions:
                    continue
                for root in self.roots:
                    counts = [self.what.count(size, element.itemsize, world_size) for size in self.sizes]
                    yield [
                        Case(self.what, element, reduction, root, count, world_size) for count in dict.fromkeys(counts)
                    ]
