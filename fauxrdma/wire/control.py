"""Typed control messages: dataclasses to msgpack and back, checked on the way in.

A control message travels as a 4-byte little-endian length followed by a msgpack map with the key ``t`` (the message's
registered name) and one key per field. Decoding validates every field against its annotation, so that the code behind
it never meets a wrong type: what does not fit raises :class:`~fauxrdma.errors.RemoteProtocolError` naming the message,
the field and the value. Supported annotations: int, float, str, bytes, bool, None, ``X | None``, ``list[X]``,
``tuple[X, ...]``, ``dict[K, V]`` and other registered messages.
"""

from __future__ import annotations

import dataclasses
import operator
import struct
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgpack

from fauxrdma.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["LENGTH_BYTES", "MAX_CONTROL_BYTES", "Message", "MessageBuffer", "decode", "encode", "message", "pack_frame"]

MAX_CONTROL_BYTES = 16 * 1024 * 1024
"""Largest control message accepted, in bytes: room for the tables of a few thousand hosts, not for an attack."""

_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size
"""Of the prefix that says how long the message behind it is."""

_REGISTRY: dict[str, type[Message]] = {}
_CHECKERS: dict[type[Message], dict[str, Callable[[Any], Any]]] = {}

M = TypeVar("M", bound="Message")


class Message:
    """Base of all control messages. Declare one as ``@message class Hello(Message): ...`` with annotated fields."""

    __slots__ = ()


@typing.dataclass_transform()
def message(cls: type[M]) -> type[M]:
    """Make `cls` a slotted dataclass and register it for decoding under its class name."""
    made = dataclasses.dataclass(slots=True)(cls)
    if made.__name__ in _REGISTRY:
        raise LocalProtocolError(f"two control messages are named {made.__name__}")
    _REGISTRY[made.__name__] = made
    return made


class _Mismatch(Exception):
    pass


def _checker(hint: Any) -> Callable[[Any], Any]:
    """A function that returns its argument as type `hint`, or raises _Mismatch."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [_checker(option) for option in typing.get_args(hint)]

        def check_union(value: Any) -> Any:
            for option in options:
                try:
                    return option(value)
                except _Mismatch:
                    continue
            raise _Mismatch

        return check_union
    if origin in (list, tuple):
        item = _checker(typing.get_args(hint)[0])

        def check_list(value: Any) -> Any:
            if not isinstance(value, list):
                raise _Mismatch
            return origin(item(v) for v in value)

        return check_list
    if origin is dict:
        key, val = (_checker(arg) for arg in typing.get_args(hint))

        def check_dict(value: Any) -> Any:
            if not isinstance(value, dict):
                raise _Mismatch
            return {key(k): val(v) for k, v in value.items()}

        return check_dict
    if hint is float:

        def check_float(value: Any) -> Any:
            if type(value) not in (int, float):
                raise _Mismatch
            return float(value)

        return check_float
    if isinstance(hint, type) and issubclass(hint, Message):

        def check_message(value: Any) -> Any:
            if not isinstance(value, dict) or value.get("t") != hint.__name__:
                raise _Mismatch
            return _from_map(value)

        return check_message
    if hint is Any:
        return lambda value: value
    exact = type(None) if hint is None else hint

    def check_exact(value: Any) -> Any:
        # `type() is` and not isinstance: True must not pass for an int.
        if type(value) is not exact:
            raise _Mismatch
        return value

    return check_exact


def _fields(cls: type[Message]) -> dict[str, Callable[[Any], Any]]:
    checkers = _CHECKERS.get(cls)
    if checkers is None:
        hints = typing.get_type_hints(cls)
        checkers = {f.name: _checker(hints[f.name]) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        _CHECKERS[cls] = checkers
    return checkers


def _from_map(raw: Any) -> Message:
    if not isinstance(raw, dict) or not isinstance(raw.get("t"), str):
        raise RemoteProtocolError(f"a control message must be a map with its type under 't', got {_short(raw)}")
    name = raw["t"]
    cls = _REGISTRY.get(name)
    if cls is None:
        raise RemoteProtocolError(f"unknown control message {name!r}; known: {', '.join(sorted(_REGISTRY))}")
    checkers = _fields(cls)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key == "t":
            continue
        check = checkers.get(key)
        if check is None:
            raise RemoteProtocolError(f"control message {name} has no field {key!r}")
        try:
            values[key] = check(value)
        except _Mismatch:
            raise RemoteProtocolError(f"control message {name}: field {key!r} cannot be {_short(value)}") from None
    try:
        return cls(**values)
    except TypeError as error:
        raise RemoteProtocolError(f"control message {name} is incomplete: {error}") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _to_map(value: Any) -> Any:
    if isinstance(value, Message):
        fields: dict[str, Any] = {"t": type(value).__name__}
        for name in _fields(type(value)):
            fields[name] = _to_map(getattr(value, name))
        return fields
    if isinstance(value, list | tuple):
        return [_to_map(v) for v in value]
    if isinstance(value, dict):
        return {k: _to_map(v) for k, v in value.items()}
    return value


def encode(msg: Message) -> bytes:
    """The msgpack bytes of a message, without the length prefix. What can be an index (a numpy integer) is an int.

    Raises LocalProtocolError over MAX_CONTROL_BYTES, TypeError and OverflowError for what msgpack has no form for."""
    data: bytes = msgpack.packb(_to_map(msg), default=operator.index, use_bin_type=True)
    if len(data) > MAX_CONTROL_BYTES:
        raise LocalProtocolError(
            f"control message {type(msg).__name__} is {len(data)} bytes, over the limit {MAX_CONTROL_BYTES}"
        )
    return data


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message in `data` (no length prefix). Raises RemoteProtocolError for anything malformed."""
    try:
        raw = msgpack.unpackb(data, raw=False, strict_map_key=False, use_list=True)
    except Exception as error:
        raise RemoteProtocolError(f"a control message is not valid msgpack: {error}") from None
    return _from_map(raw)


def pack_frame(msg: Message) -> bytes:
    """Length prefix and msgpack body, ready for a stream."""
    data = encode(msg)
    return _LENGTH.pack(len(data)) + data


class MessageBuffer:
    """Cuts a byte stream into messages: `feed` bytes, then iterate.

    Raises RemoteProtocolError as soon as a length prefix exceeds the limit, before any of that body is buffered.
    """

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append received bytes."""
        self._data += data

    def __iter__(self) -> Iterator[Message]:
        data = self._data
        while len(data) >= 4:
            (length,) = _LENGTH.unpack_from(data)
            if length > MAX_CONTROL_BYTES:
                raise RemoteProtocolError(
                    f"a control message claims {length} bytes, over the limit {MAX_CONTROL_BYTES}: "
                    "the peer does not speak fauxrdma's control protocol"
                )
            if len(data) < 4 + length:
                return
            body = bytes(data[4 : 4 + length])
            del data[: 4 + length]
            yield decode(body)
