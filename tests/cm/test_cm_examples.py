"""The two examples talk to each other over two nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fauxrdma.lab.local import LocalLab

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_client_hears_its_words_in_capitals() -> None:
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none") as lab:

        def start(node: int, script: str, *arguments: str) -> subprocess.Popen[str]:
            environment = {**os.environ, "FAUXRDMA_SOCKET": str(lab.socket_path(node))}
            command = [sys.executable, str(EXAMPLES / script), *arguments]
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

        server = start(1, "cm_server.py")
        assert server.stdout is not None
        client = start(0, "cm_client.py", *server.stdout.readline().split(), "hello", "world")
        try:
            said, _ = client.communicate(timeout=30)
            heard, _ = server.communicate(timeout=30)
        finally:
            client.kill()
            server.kill()
        assert said.splitlines() == ["accepted by the server in capitals", "HELLO", "WORLD"]
        assert heard.splitlines() == ["asked by the client", "parted"]
        assert (client.returncode, server.returncode) == (0, 0)
