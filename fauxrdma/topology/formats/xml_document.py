"""XML with the position of every element, by the standard library's expat. No document type, so no entities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats.source import Source

__all__ = ["COMMENT", "Element", "attributes", "checked_text", "parse_xml"]

COMMENT = "#comment"
"""The tag of a comment; its content is `text`."""

MAX_DEPTH = 64

_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What XML 1.0 cannot hold (2.2)."""


@dataclass(slots=True)
class Element:
    """An element (without its namespace), or a comment, and where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    column: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str) -> Iterator[Element]:
        """The children called `tag`."""
        return (child for child in self.children if child.tag == tag)

    def get(self, source: Source, name: str) -> str:
        """The attribute `name`. Raises ConfigError, with the element's position, if it has none."""
        value = self.attributes.get(name)
        if value is None:
            raise source.refusal(self.line, self.column, f"<{self.tag}> needs the attribute {name!r}")
        return value


def parse_xml(source: Source, root: str) -> Element:
    """The root element, which must be called `root`. Raises ConfigError with the position of the first mistake."""
    parser = expat.ParserCreate(namespace_separator=" ")
    stack = [Element("", {}, 1, 1)]

    def here() -> tuple[int, int]:
        return parser.CurrentLineNumber, parser.CurrentColumnNumber + 1

    def start(name: str, attributes: dict[str, str]) -> None:
        element = Element(_local(name), {_local(key): value for key, value in attributes.items()}, *here())
        if len(stack) > MAX_DEPTH:
            raise source.refusal(*here(), f"elements are nested deeper than {MAX_DEPTH}, which no fabric file needs")
        if len(stack) == 1 and element.tag != root:
            raise source.refusal(*here(), f"the outermost element is <{element.tag}>, <{root}> was expected")
        stack[-1].children.append(element)
        stack.append(element)

    def end(_name: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].text += data

    def comment(data: str) -> None:
        stack[-1].children.append(Element(COMMENT, {}, *here(), text=data))

    def doctype(*_: object) -> None:
        raise source.refusal(*here(), "a document type (<!DOCTYPE>) is not read: take it out")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.CommentHandler = comment
    parser.StartDoctypeDeclHandler = doctype
    parser.buffer_text = True
    try:
        parser.Parse(source.text.encode(), True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        raise source.refusal(error.lineno, error.offset + 1, f"not well-formed XML: {what}") from None
    return next(stack[0].all(root))


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def attributes(pairs: dict[str, object]) -> str:
    """` name="value"` for each pair, escaped."""
    return "".join(f" {name}={quoteattr(checked_text(str(value)))}" for name, value in pairs.items())


def checked_text(text: str) -> str:
    """`text`, which XML must be able to hold. Raises ConfigError for control characters and lone surrogates."""
    bad = _NOT_XML.search(text)
    if bad is not None:
        raise ConfigError(f"{text[:60]!r} cannot be written as XML: it has no way to say the character {bad[0]!r}")
    return text


def escaped(text: str) -> str:
    """`text` as the content of an element."""
    return escape(checked_text(text), {"\r": "&#13;"})
