"""What pyverbs' classes have in common (pyverbs.base)."""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Self

from fauxrdma.compat.pyverbs_error import PyverbsRDMAError
from fauxrdma.verbs import inc_rkey

__all__ = ["PyverbsCM", "PyverbsObject", "PyverbsRDMAErrno", "PyverbsRDMAError", "inc_rkey"]


def PyverbsRDMAErrno(msg: str) -> PyverbsRDMAError:
    """An error with the errno of the verb that was refused last."""
    return PyverbsRDMAError(msg, ctypes.get_errno())


class PyverbsObject:
    """Anything of pyverbs: it has a logger by the name of its class."""

    @property
    def logger(self) -> logging.Logger:
        """Of the class."""
        return logging.getLogger(type(self).__name__)

    def set_log_level(self, val: int | str) -> None:
        """Set the level of the class's logger."""
        self.logger.setLevel(val)


class PyverbsCM(PyverbsObject):
    """A context manager that closes itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to do, unless a class says otherwise."""
