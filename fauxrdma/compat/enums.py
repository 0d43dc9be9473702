"""All constants, flat (pyverbs.enums, until pyverbs 50)."""

from fauxrdma.compat.libibverbs_enums import *  # noqa: F403
