"""Whole numbers in a plan file: `3`, `rank + 1`, `2 ** i`, `n - 1 - i`, and conditions such as `rank % 2 == 0`.

Python's own syntax, of which only arithmetic, comparisons and `and`, `or`, `not` are let through.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fauxrdma.errors import ConfigError

__all__ = ["Expression", "parse_expression"]

_MOST = 1 << 40
"""No number in a plan is larger, on the way to its value neither."""
_MOST_CHARACTERS = 200

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `names` are those it needs values for."""

    text: str
    tree: ast.expr
    names: frozenset[str]

    def value(self, names: Mapping[str, int]) -> int:
        """The number, a condition's being 0 or 1. Raises ConfigError for a name without a value, a division by zero, or
        numbers that are too large."""
        try:
            return int(_value(self.tree, names))
        except KeyError as error:
            raise ConfigError(f"{self.text!r}: {error.args[0]!r} has no value here") from None
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            raise ConfigError(f"{self.text!r} has no value: {error}") from None


def parse_expression(given: object) -> Expression:
    """The expression that a file gives as a number or text. Raises ConfigError for anything else."""
    if isinstance(given, int) and not isinstance(given, bool):
        return Expression(str(given), ast.Constant(given), frozenset())
    if not isinstance(given, str) or not given.strip() or len(given) > _MOST_CHARACTERS:
        raise ConfigError(f"{str(given)[:60]!r} is no number: write 3, or an expression such as rank + 1")
    try:
        tree = ast.parse(given.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(f"{given!r} is no expression: write 3, rank + 1, 2 ** i, n - 1 - i") from None
    names: set[str] = set()
    _check(tree, given, names)
    return Expression(given.strip(), tree, frozenset(names))


def _check(node: ast.expr, text: str, names: set[str]) -> None:
    if isinstance(node, ast.Name):
        names.add(node.id)
        return
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= _MOST:
        return
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        inner = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
        inner = [node.operand]
    elif isinstance(node, ast.BoolOp):
        inner = node.values
    elif isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        inner = [node.left, *node.comparators]
    else:
        hint = "; divide with //" if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else ""
        raise ConfigError(f"{text!r}: {ast.unparse(node)!r} is neither a whole number, a name, nor + - * // %{hint}")
    for part in inner:
        _check(part, text, names)


def _value(node: ast.expr, names: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, ast.Pow | ast.LShift) and not 0 <= right <= 40:
            raise ValueError(f"an exponent of {right}")
        found = _BINARY[type(node.op)](left, right)
        if abs(found) > _MOST:
            raise ValueError("a number that large")
        return found
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, names)
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BoolOp):
        parts = (_value(part, names) for part in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    assert isinstance(node, ast.Compare)
    left = _value(node.left, names)
    for op, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, names)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True
