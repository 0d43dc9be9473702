"""A node's part in virtual time: steps when told, says what the timekeeper has to know, looks whether ranks sleep."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterable

from fauxrdma.runtime.app_session import AppSession
from fauxrdma.runtime.sleepers import SleepWatch, is_running
from fauxrdma.runtime.virtual_data_path import VirtualDataPath
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import ClockGo, ClockLook, ClockRanks, ClockTurn, ClockWord

__all__ = ["VirtualNode"]


class VirtualNode:
    """`sessions()` are the node's applications; `busy()` says whether something was begun that ends by itself,
    `heard()` how many messages of the manager were taken in; `send` reaches it. `listener`: the descriptor of the
    socket that applications connect to."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        data_path: VirtualDataPath,
        listener: int,
        sessions: Callable[[], Iterable[AppSession]],
        busy: Callable[[], bool],
        heard: Callable[[], int],
        send: Callable[[Message], None],
    ) -> None:
        self._loop = loop
        self._data_path = data_path
        self._listener = listener
        self._sessions = sessions
        self._busy = busy
        self._heard = heard
        self._send = send
        self._step = 0
        self._stepping = False
        self._ranks: dict[int, str] = {}
        self._watch = SleepWatch()
        self._news = 0
        self._news_before = 0  # when the look under way began
        self._speaking = False
        data_path.on_news = self.news
        self.news()

    def news(self) -> None:
        """Something is to be said, once this turn of the loop is over."""
        self._news += 1
        if not self._speaking:
            self._speaking = True
            self._loop.call_soon(self._speak)

    def _speak(self) -> None:
        self._speaking = False
        if not self._stepping and not self._busy():
            self._send(self._word())

    def handle(self, msg: Message) -> bool:
        """Take in a message of the clock's; False for any other."""
        if isinstance(msg, ClockGo):
            self._step, self._stepping = msg.step, True
            self._data_path.step(msg.now_ns, self._stepped)
        elif isinstance(msg, ClockLook):
            self._look(msg)
        elif isinstance(msg, ClockTurn):
            self._data_path.turn(msg.now_ns)
            self.news()
        elif isinstance(msg, ClockRanks):
            self._ranks.update(zip(msg.pids, msg.names, strict=True))
            self.news()
        else:
            return False
        return True

    def _stepped(self) -> None:
        self._stepping = False
        self.news()

    def participants(self) -> set[int]:
        """The processes that are waited for."""
        for pid in [pid for pid in self._ranks if not is_running(pid)]:
            del self._ranks[pid]
        return {*self._ranks, *(session.peer_pid for session in self._sessions())} - {0}

    def _look(self, msg: ClockLook) -> None:
        if msg.phase == 1:
            self._watch.sample(self.participants())
            self._news_before = self._news
            asleep = True
        else:
            asleep = self._watch.asleep() and self._news == self._news_before
        asleep = asleep and not self._busy() and not self._input_waits()
        word = self._word()
        word.look, word.phase, word.asleep = msg.number, msg.phase, asleep
        if asleep and msg.phase == 2 and word.due_ns is None and not word.polling:
            word.blocked = self._blocked()
        self._send(word)

    def _input_waits(self) -> bool:
        """Whether applications have said what was not read yet."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        for session in self._sessions():
            for fd in session.descriptors():
                poller.register(fd, select.POLLIN)
        return bool(poller.poll(0))

    def _word(self) -> ClockWord:
        path = self._data_path
        sent, received = path.counts()
        return ClockWord(
            self._step, self._heard(), sent, received, path.due_ns(), path.woke, path.polling(),
            len(self.participants()), 0, 0, False, [],
        )  # fmt: skip

    def _blocked(self) -> list[str]:
        """Who waits for what, a sentence each."""
        out = []
        waits: dict[int, list[str]] = {}
        for session in self._sessions():
            waits.setdefault(session.peer_pid, []).extend(session.waits_for())
        for pid in sorted(self.participants(), key=lambda pid: (self._ranks.get(pid, ""), pid)):
            who = self._ranks.get(pid) or f"process {pid}"
            what = "; ".join(waits.get(pid, [])) or "something outside the fabric (it has no queue pair)"
            out.append(f"{who} waits for {what}")
        return out
