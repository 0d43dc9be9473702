"""Collectives as data: plans, ring algorithms, symbolic proofs, cost, the sans-IO executor (docs/collectives.md)."""

from fauxrdma.collectives.arithmetic import OPS, Arithmetic, NumpyArithmetic, numpy_arithmetic
from fauxrdma.collectives.barrier import dissemination_barrier
from fauxrdma.collectives.bfloat16 import Bfloat16Arithmetic
from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.cost import predict_ns
from fauxrdma.collectives.executor import PlanExecutor
from fauxrdma.collectives.partition import Partition, chunk_elements, equal_blocks, gloo_blocks
from fauxrdma.collectives.plan import Plan, Program, Traffic
from fauxrdma.collectives.ring import ring_all_gather, ring_all_reduce, ring_broadcast, ring_reduce_scatter
from fauxrdma.collectives.symbolic import PlanDefect, SymbolicResult, run_symbolically

__all__ = [
    "OPS",
    "Arithmetic",
    "Bfloat16Arithmetic",
    "Channel",
    "NumpyArithmetic",
    "Partition",
    "Plan",
    "PlanDefect",
    "PlanExecutor",
    "Program",
    "SymbolicResult",
    "Traffic",
    "chunk_elements",
    "dissemination_barrier",
    "equal_blocks",
    "gloo_blocks",
    "numpy_arithmetic",
    "predict_ns",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_broadcast",
    "ring_reduce_scatter",
    "run_symbolically",
]
