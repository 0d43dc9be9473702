"""Our own memory providers and transports, by the suites that others test theirs with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fauxrdma.ib.enums import IBV_QPT_RC
from fauxrdma.lab.local import LocalLab
from fauxrdma.testing import (
    BufferProvider,
    MemoryProviderConformance,
    NewMemoryProvider,
    Pair,
    TransportConformance,
)
from fauxrdma.testing.memory_conformance import MemoryProvider
from fauxrdma.verbs import Context


class TestMemfd(MemoryProviderConformance):
    def make_provider(self) -> MemoryProvider:
        return NewMemoryProvider()


class TestProcessVm(MemoryProviderConformance):
    def make_provider(self) -> MemoryProvider:
        return BufferProvider("process_vm")


class TestStaged(MemoryProviderConformance):
    def make_provider(self) -> MemoryProvider:
        return BufferProvider("staged", lambda length: np.zeros(length, np.uint8))


class _Daemons:
    """Two nodes of a lab, as processes: TCP between them."""

    fabric = "fat-tree"
    clock = "none"

    @contextmanager
    def open_contexts(self) -> Iterator[tuple[Context, Context]]:
        with (
            LocalLab(self.fabric, nodes=2, gpus=1, clock=self.clock) as lab,
            Context("hca1", str(lab.socket_path(0))) as one,
            Context("hca1", str(lab.socket_path(1))) as other,
        ):
            yield one, other


class TestMemfdWithDaemons(_Daemons, TestMemfd):
    """The daemon is another process, which is what providers are about."""


class TestProcessVmWithDaemons(_Daemons, TestProcessVm):
    """As above."""


class TestStagedWithDaemons(_Daemons, TestStaged):
    """As above."""


class _InProcess(TransportConformance):
    transport = "infiniband"

    @contextmanager
    def open_contexts(self) -> Iterator[tuple[Context, Context]]:
        with Pair(transport=self.transport) as pair:
            yield pair.a.context(), pair.b.context()


class _Iwarp:
    qp_types = (IBV_QPT_RC,)
    send_with_immediate = False


class TestInfiniband(_InProcess):
    """In one process."""


class TestRocev2(_InProcess):
    transport = "rocev2"


class TestRocev1(_InProcess):
    transport = "rocev1"


class TestIwarp(_Iwarp, _InProcess):
    transport = "iwarp"


class TestNoisyInfiniband(_InProcess):
    """What RC promises holds where one frame in fifty is lost, doubled, late or overtaken: all else is as ever, and the
    tests of UC and UD are let through, since they promise less."""

    qp_types = (IBV_QPT_RC,)

    @contextmanager
    def open_contexts(self) -> Iterator[tuple[Context, Context]]:
        with Pair(seed=4) as pair:
            pair.noise(loss=0.02, duplicate=0.02, reorder=0.02, delay=0.02)
            yield pair.a.context(), pair.b.context()

    def test_an_unreliable_connection_writes_and_sends(self) -> None:  # type: ignore[override]
        """Not promised."""

    def test_a_datagram_finds_its_queue_pair(self) -> None:  # type: ignore[override]
        """Not promised."""


class TestLoopback(_InProcess):
    """One device, twice."""

    @contextmanager
    def open_contexts(self) -> Iterator[tuple[Context, Context]]:
        with Pair() as pair:
            yield pair.a.context(), pair.a.context()


class TestInfinibandDaemons(_Daemons, TransportConformance):
    """TCP, as fast as the host goes."""


class TestPacedDaemons(_Daemons, TransportConformance):
    clock = "paced"


class TestVirtualDaemons(_Daemons, TransportConformance):
    clock = "virtual"


class TestRocev2Daemons(_Daemons, TransportConformance):
    fabric = "fat-tree,transport=rocev2"


class TestRocev1Daemons(_Daemons, TransportConformance):
    fabric = "fat-tree,transport=rocev1"


class TestIwarpDaemons(_Iwarp, _Daemons, TransportConformance):
    fabric = "fat-tree,transport=iwarp"


def test_the_suites_find_what_is_wrong(tmp_path: Path) -> None:
    """A provider that registers more than was asked for, and a transport that alters a byte."""
    (tmp_path / "test_wrong.py").write_text(
        "from contextlib import contextmanager\n"
        "from fauxrdma.testing import MemoryProviderConformance, Pair, TransportConformance\n"
        "from fauxrdma.verbs import MR\n"
        "class TestGenerous(MemoryProviderConformance):\n"
        "    def make_provider(self):\n"
        "        return self\n"
        "    def register(self, pd, length, access):\n"
        "        return MR(pd, length + 1, access | 3)\n"
        "class TestAltering(TransportConformance):\n"
        "    @contextmanager\n"
        "    def open_contexts(self):\n"
        "        with Pair() as pair:\n"
        "            def alter(frame):\n"
        "                for part in frame.payload:\n"
        "                    part[0] ^= 1\n"
        "                return False\n"
        "            pair.drop(opcode='RDMA_WRITE', where=alter)\n"
        "            yield pair.a.context(), pair.b.context()\n"
        "class TestNothingSaid(TransportConformance):\n"
        "    pass\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "-rfE", str(tmp_path)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout
    for failed in (
        "TestGenerous::test_nothing_is_reached_beyond_it",
        "TestGenerous::test_access_that_was_not_given_is_refused[write]",
        "TestAltering::test_a_write_lands_where_it_was_sent_and_nowhere_else[4096]",
        "must say how to open two devices",
    ):
        assert failed in run.stdout, run.stdout
    assert "TestAltering::test_a_read_brings_what_is_there" not in run.stdout
