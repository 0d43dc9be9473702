"""YAML as a tree of scalars, lists and mappings, each with its position. Scalars stay the text they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats.plain_yaml import NotPlain, PlainReader
from fauxrdma.topology.formats.source import Source

__all__ = ["Tree", "parse_yaml"]

MAX_DEPTH = 32


@dataclass(slots=True)
class Tree:
    """A value in a YAML file: `text` of a scalar, `elements` of a list, or `children` of a mapping."""

    source: Source
    at: tuple[int, int]
    what: str
    text: str | None = None
    elements: list[Tree] | None = None
    children: dict[str, Tree] = field(default_factory=dict)
    is_mapping: bool = False

    @property
    def is_scalar(self) -> bool:
        """Whether this is text, a number or the like."""
        return self.text is not None

    def refusal(self, message: str) -> ConfigError:
        """The error to raise for a mistake in this value."""
        return self.source.refusal(*self.at, message)

    def mapping(self) -> Tree:
        """Itself, if it is a mapping. Raises ConfigError otherwise."""
        if not self.is_mapping:
            raise self.refusal(f"{self.what} must be a mapping, `key: value`")
        return self

    def child(self, key: str) -> Tree:
        """The value of `key`. Raises ConfigError if there is none."""
        if key not in self.mapping().children:
            raise self.refusal(f"{key!r} is missing in {self.what}")
        return self.children[key]

    def items(self) -> list[Tree]:
        """The elements of a list. Raises ConfigError for anything else."""
        if self.elements is None:
            raise self.refusal(f"{self.what} must be a list")
        return self.elements

    def scalar(self) -> str:
        """The text of a scalar. Raises ConfigError for anything else."""
        if self.text is None:
            raise self.refusal(f"{self.what} must be text")
        return self.text


def parse_yaml(source: Source) -> Tree:
    """The file's mapping. Raises ConfigError with line and column for what is not YAML."""
    try:
        return _read_plain(source).mapping()
    except NotPlain:
        return _read_any(source)


def _read_plain(source: Source) -> Tree:
    reader = PlainReader[Tree](
        lambda what, at, text: Tree(source, at, what, text),
        lambda what, at, trees: Tree(source, at, what, elements=trees),
        lambda what, at, trees: Tree(source, at, what, children=trees, is_mapping=True),
        MAX_DEPTH,
    )
    return reader.read(source.text, "the file")


def _read_any(source: Source) -> Tree:
    try:
        root = YAML(typ="safe", pure=True).compose(source.text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise source.refusal(
            line, column, f"not valid YAML: {(error.problem or 'cannot be read').splitlines()[0]}"
        ) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise source.refusal(1, 1, f"not valid YAML: {' '.join(str(error).split())[:120]}") from None
    if root is None:
        raise source.refusal(1, 1, "the file is empty")
    return _tree(source, root, "the file", 0).mapping()


def _tree(source: Source, node: Any, what: str, depth: int) -> Tree:
    tree = Tree(source, (node.start_mark.line + 1, node.start_mark.column + 1), what)
    if depth > MAX_DEPTH:
        raise tree.refusal(f"nested deeper than {MAX_DEPTH} levels, which no topology file is")
    if isinstance(node, ScalarNode):
        tree.text = str(node.value)
    elif isinstance(node, SequenceNode):
        tree.elements = [_tree(source, inner, f"an element of {what}", depth + 1) for inner in node.value]
    elif isinstance(node, MappingNode):
        tree.is_mapping = True
        for key, value in node.value:
            name = str(key.value) if isinstance(key, ScalarNode) else ""
            if name in tree.children:
                raise source.refusal(key.start_mark.line + 1, key.start_mark.column + 1, f"{name!r} is there twice")
            tree.children[name] = _tree(source, value, repr(name), depth + 1)
    return tree
