"""Which rank sits where: block, cyclic, rail-aligned, random, or as a file says (docs/placement.md)."""

from fauxrdma.topology.placement.choosing import choose_placement
from fauxrdma.topology.placement.dealing import PLACEMENTS, deal
from fauxrdma.topology.placement.placement import Placement, RingHops, rails_of_places

__all__ = ["PLACEMENTS", "Placement", "RingHops", "choose_placement", "deal", "rails_of_places"]
