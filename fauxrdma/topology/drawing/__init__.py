"""Fabrics drawn: in the terminal (`terminal`), as a picture (`svg`), as Mermaid text (`mermaid`).

`picture` decides what is drawn: every switch and every group of hosts that are plugged in alike, and in a fabric too
big for that, one box for all switches that stand alike.
"""

from fauxrdma.topology.drawing.names import runs
from fauxrdma.topology.drawing.terminal import draw

__all__ = ["draw", "runs"]
