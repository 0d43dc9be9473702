"""Collectives over emulated queue pairs, on numpy arrays in place. No torch needed."""

from fauxrdma.communicator.communicator import Communicator
from fauxrdma.communicator.messenger import PendingTransfer
from fauxrdma.communicator.rendezvous import RendezvousStore
from fauxrdma.communicator.statistics import Operation, RankStatistics, process_statistics

__all__ = ["Communicator", "Operation", "PendingTransfer", "RankStatistics", "RendezvousStore", "process_statistics"]
