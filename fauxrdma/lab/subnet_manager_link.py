"""A blocking connection to a subnet manager, as the lab and the command line use it (see wire/fabric_messages.py)."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import TypeVar

from fauxrdma.errors import ConfigError, FabricUnhealthy, RemoteProtocolError, SetupError
from fauxrdma.wire.control import Message, MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    ClockRanks,
    ClockRanksKnown,
    FabricReady,
    FabricReport,
    LabHello,
    LabWelcome,
    LinkChange,
    LinkChanged,
    PathAnswer,
    PathQuery,
    ReadyQuery,
    Refusal,
    ReportQuery,
    SweepQuery,
    SweepReport,
)
from fauxrdma.wire.fault_messages import FaultAnswer, FaultClear, FaultEvent, FaultList, FaultQuery

__all__ = ["SubnetManagerLink"]

M = TypeVar("M", bound=Message)
_CONNECT_TIMEOUT_S = 5.0


class SubnetManagerLink:
    """One connection, one question at a time. A context manager.

    Raises SetupError when nothing listens, FabricUnhealthy when the manager closes the connection or stays silent, and
    RemoteProtocolError when it refuses or answers something else.
    """

    def __init__(self, host: str, port: int) -> None:
        self._where = f"{host}:{port}"
        self._buffer = MessageBuffer()
        try:
            self._socket = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            raise SetupError(
                f"no subnet manager answers at {self._where} ({error.strerror or error}): is the fabric running?"
            ) from None
        try:
            self.welcome = self._ask(LabHello(version=CONTROL_VERSION), LabWelcome, _CONNECT_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SubnetManagerLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_ready(self, timeout_s: float) -> FabricReady:
        """Wait until every node is in the fabric."""
        return self._ask(ReadyQuery(), FabricReady, timeout_s)

    def report(self, reset: bool = False, timeout_s: float = 15.0) -> FabricReport:
        """What the fabric carried, after every daemon flushed its counters; `reset` zeroes them afterwards."""
        return self._ask(ReportQuery(reset=reset), FabricReport, timeout_s)

    def change_link(self, link: str, up: bool, timeout_s: float = 15.0) -> str:
        """Have a cable fail or come back; its full name. Raises ConfigError for what is no cable."""
        changed = self._ask(LinkChange(link, up), LinkChanged, timeout_s)
        if changed.error:
            raise ConfigError(changed.error)
        return changed.link

    def inject(self, event: FaultEvent, timeout_s: float = 15.0) -> int:
        """Have a fault begin, or put it on the timeline; its number. Raises ConfigError for what the fabric has not."""
        return self._fault(event, timeout_s)[0]

    def clear_fault(self, number: int, timeout_s: float = 15.0) -> list[int]:
        """End a fault, 0 for all; the numbers of those that were not over. Raises ConfigError when there is none."""
        return self._fault(FaultClear(number), timeout_s)

    def faults(self, timeout_s: float = 15.0) -> FaultList:
        """All faults of the fabric, and what links did to packets."""
        return self._ask(FaultQuery(), FaultList, timeout_s)

    def _fault(self, question: Message, timeout_s: float) -> list[int]:
        answer = self._ask(question, FaultAnswer, timeout_s)
        if answer.error:
            raise ConfigError(answer.error)
        return answer.numbers

    def swept(self, timeout_s: float) -> SweepReport:
        """Wait until no trap is under way, no sweep runs and every daemon goes by the tables."""
        return self._ask(SweepQuery(), SweepReport, timeout_s)

    def path(self, slid: int, dlid: int, label: int = 0, timeout_s: float = 15.0) -> PathAnswer:
        """The path of a flow as the manager has it now; `label` tells those of one pair apart, on Ethernet."""
        return self._ask(PathQuery(slid, dlid, label), PathAnswer, timeout_s)

    def await_ranks(self, nodes: list[int], pids: list[int], names: list[str], timeout_s: float = 15.0) -> None:
        """Have virtual time wait for these processes, on the nodes of the same places in the lists."""
        self._ask(ClockRanks(nodes, pids, names), ClockRanksKnown, timeout_s)

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    def _ask(self, question: Message, answer: type[M], timeout_s: float) -> M:
        name = type(question).__name__
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(pack_frame(question))
            while True:
                for message in self._buffer:
                    if isinstance(message, answer):
                        return message
                    if isinstance(message, Refusal):
                        raise RemoteProtocolError(f"the subnet manager at {self._where} refuses: {message.reason}")
                    raise RemoteProtocolError(
                        f"the subnet manager at {self._where} answered {name} with {type(message).__name__}"
                    )
                data = self._socket.recv(65536)
                if not data:
                    raise FabricUnhealthy(f"the subnet manager at {self._where} closed the connection during {name}")
                self._buffer.feed(data)
        except TimeoutError:
            raise FabricUnhealthy(
                f"the subnet manager at {self._where} did not answer {name} within {timeout_s:g} s"
            ) from None
        except OSError as error:
            raise FabricUnhealthy(
                f"the connection to the subnet manager at {self._where} broke during {name}: {error.strerror or error}"
            ) from None
