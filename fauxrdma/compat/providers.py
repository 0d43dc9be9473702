"""Vendors' extensions (pyverbs.providers.mlx5, .efa, .hns, .hbl): they can be imported, and answer EOPNOTSUPP.

Programs import them at their start, whatever device they then find. So every name is there: constants are numbers,
classes of attributes keep what they are told, and what would open or make something of the device raises
PyverbsRDMAError(EOPNOTSUPP), by which programs know to leave that part out.
"""

from __future__ import annotations

import itertools
import re
from types import ModuleType, new_class
from typing import Any

from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import not_offered

__all__ = ["stand_ins"]

_MODULES = {
    "mlx5": (
        "mlx5dv", "mlx5_enums", "mlx5dv_crypto", "mlx5dv_dmabuf", "mlx5dv_event", "mlx5dv_flow", "mlx5dv_mkey",
        "mlx5dv_objects", "mlx5dv_sched", "mlx5_vfio", "dr_action", "dr_domain", "dr_matcher", "dr_rule", "dr_table",
    ),
    "efa": ("efadv", "efa_enums"),
    "hns": ("hnsdv", "hns_enums"),
    "hbl": ("hbldv", "hbl_enums"),
}  # fmt: skip

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9]*_[A-Z0-9_]+$")
_ATTRIBUTES = re.compile(r"(Attr|AttrEx|Attributes|Params|Caps|Info|Desc|Spec|Attr\w*List)$")
_numbers = itertools.count(1)


class VendorConstant(int):
    """A number that no device here will ever see; each constant has another."""

    name: str

    def __repr__(self) -> str:
        return self.name


class VendorAttributes(PyverbsObject):
    """Keeps its keyword arguments as attributes; those it was not told are None."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.__dict__.update(kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Refusing(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _function(f"{cls.__name__}.{name}")


class VendorObject(PyverbsCM, metaclass=_Refusing):
    """Cannot be made here: PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, *_: Any, **__: Any) -> None:
        not_offered(f"Failed to create {type(self).__name__}", "vendor's extensions")


class VendorModule(ModuleType):
    """A module whose names are made when they are asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name, self.__doc__)
        self.__path__: list[str] = []  # packages and modules alike: what is in them is in sys.modules

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__} has no attribute {name}")
        made: Any
        if _CONSTANT.match(name):
            made = VendorConstant(next(_numbers))
            made.name = name
        elif re.match(r"(mlx5dv|efadv|hnsdv|hbldv)_", name):  # an enum class: its members are constants
            made = VendorModule(f"{self.__name__}.{name}")
        elif name[0].isupper():
            base = VendorAttributes if _ATTRIBUTES.search(name) else VendorObject
            made = new_class(name, (base,))
            made.__module__, made.__doc__ = self.__name__, base.__doc__
        else:
            made = _function(name)
        setattr(self, name, made)
        return made


def _function(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> None:
        not_offered(f"Failed to call {name}", "vendor's extensions")

    refuse.__name__ = name
    return refuse


def stand_ins() -> dict[str, ModuleType]:
    """The modules by their names behind `pyverbs.providers.`: packages and what is in them."""
    made: dict[str, ModuleType] = {}
    for vendor, names in _MODULES.items():
        package = made[vendor] = VendorModule(f"pyverbs.providers.{vendor}")
        for name in names:
            module = made[f"{vendor}.{name}"] = VendorModule(f"pyverbs.providers.{vendor}.{name}")
            setattr(package, name, module)
    globals().update({name: module for name, module in made.items() if "." not in name})
    return made


__path__: list[str] = []  # pyverbs.providers is a package
