"""The connection manager's constants, flat (pyverbs.cm_enums, until pyverbs 50)."""

from fauxrdma.compat.librdmacm_enums import *  # noqa: F403
