"""pyverbs' exceptions: one for what the device or the library refuses, one for what the caller got wrong."""

from __future__ import annotations

import os

__all__ = ["PyverbsError", "PyverbsRDMAError", "PyverbsUserError"]


class PyverbsError(Exception):
    """Base of both. With an `error_code` the message ends in `. Errno: 22, Invalid argument`."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        if error_code != -1:
            msg = f"{msg}. Errno: {error_code}, {os.strerror(error_code)}"
        super().__init__(msg)


class PyverbsRDMAError(PyverbsError):
    """A verb was refused; `error_code` is the errno, -1 when there is none."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        super().__init__(msg, error_code)
        self._error_code = error_code

    @property
    def error_code(self) -> int:
        """The errno."""
        return self._error_code


class PyverbsUserError(PyverbsError):
    """The arguments cannot be used."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
