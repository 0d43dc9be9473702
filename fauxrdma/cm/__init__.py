"""The communication manager of one HCA (IBTA vol. 1, chapter 12): how queue pairs find each other by a service number.

Messages as they travel in MADs, one connection's state machine, and the manager of all of them. No sockets, no clock.
"""

from fauxrdma.cm.connection import Connection, State
from fauxrdma.cm.manager import ConnectionManager
from fauxrdma.cm.messages import CmMessage, Kind, Reject
from fauxrdma.cm.steps import SendMad, Tell

__all__ = ["CmMessage", "Connection", "ConnectionManager", "Kind", "Reject", "SendMad", "State", "Tell"]
