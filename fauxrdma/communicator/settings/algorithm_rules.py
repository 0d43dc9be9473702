"""NCCL_ALGO and FAUXRDMA_ALGO: which algorithm each operation uses.

NCCL_ALGO speaks NCCL's language (2.24 and later): ``ring,tree;allreduce:tree;broadcast:^tree``, a list for all
functions and lists for single ones, a caret inverting its list. FAUXRDMA_ALGO speaks ours, and goes first:
``hierarchical;all_to_all:pxn``, one name for all operations that have it and names for single ones; also ``auto`` and
``file:PATH``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fauxrdma.collectives.request import FILE_PREFIX
from fauxrdma.errors import ConfigError

__all__ = ["ALGO_VARIABLE", "NCCL_ALGO_VARIABLE", "AlgorithmRules", "parse_nccl_algo", "parse_own_algo"]

NCCL_ALGO_VARIABLE = "NCCL_ALGO"
ALGO_VARIABLE = "FAUXRDMA_ALGO"

FUNCTIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""NCCL's functions, and what they are called here."""
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "ring": ("ring", "chain"),
    "tree": ("double-tree", "binomial-tree"),
}
"""NCCL's algorithms that are emulated, and what they are called here, by operation."""
OTHERS = ("collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat")
"""NCCL's algorithms that need switches which compute, or are not emulated."""
AUTO = "auto"
CHOSEN_ELSEWHERE = (AUTO, FILE_PREFIX)

Known = Mapping[str, Collection[str]]
"""The algorithms there are, by operation."""


@dataclass(frozen=True, slots=True)
class AlgorithmRules:
    """What the environment says about algorithms. `by_operation` maps an operation to the algorithm it must use;
    `refused` those to which nothing is left, to the reason."""

    by_operation: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def algorithm(self, operation: str) -> str | None:
        """The algorithm that `operation` must use: a name, ``auto``, ``file:PATH``, or None for the default. Raises
        ConfigError when NCCL_ALGO leaves it none."""
        if operation in self.refused:
            raise ConfigError(self.refused[operation])
        return self.by_operation.get(operation)

    def over(self, others: AlgorithmRules) -> AlgorithmRules:
        """These rules where they say anything, else `others`."""
        refused = {name: why for name, why in others.refused.items() if name not in self.by_operation}
        return AlgorithmRules({**others.by_operation, **self.by_operation}, refused)


def parse_nccl_algo(text: str, known: Known) -> AlgorithmRules:
    """What NCCL_ALGO says. Of several algorithms left for a function the first of ring and tree is used; without ring
    there is no falling back to it, as in NCCL since 2.24: a function to which nothing is left is refused when it is
    called. Raises ConfigError for names that NCCL does not have."""
    lists = _split(text, NCCL_ALGO_VARIABLE, FUNCTIONS)
    by_operation: dict[str, str] = {}
    refused: dict[str, str] = {}
    for function, operation in FUNCTIONS.items():
        words = lists.get(function, lists.get(""))
        if words is None:
            continue
        ours = [name for kind in _allowed(words, text) for name in ALGORITHMS[kind] if name in known.get(operation, ())]
        if ours:
            by_operation[operation] = ours[0]
        else:
            have = [kind for kind, names in ALGORITHMS.items() if set(names) & set(known.get(operation, ()))]
            refused[operation] = (
                f"{NCCL_ALGO_VARIABLE}={text!r} leaves no algorithm for {operation}, which has {', '.join(have)} here; "
                f"add one of them, or a list for {function} alone: ...;{function}:{have[0] if have else 'ring'}"
            )
    return AlgorithmRules(by_operation, refused)


def _allowed(words: str, text: str) -> list[str]:
    """Those of :data:`ALGORITHMS` that a comma-separated list lets be used."""
    inverted, words = words.startswith("^"), words.removeprefix("^")
    named = [word.strip().lower() for word in words.split(",")]
    for word in named:
        if word not in ALGORITHMS and word not in OTHERS:
            raise ConfigError(
                f"{NCCL_ALGO_VARIABLE}={text!r}: there is no algorithm {word!r}; NCCL has "
                f"{', '.join([*ALGORITHMS, *OTHERS])}, of which {' and '.join(ALGORITHMS)} are emulated"
            )
    return [kind for kind in ALGORITHMS if (kind in named) != inverted]


def parse_own_algo(text: str, known: Known) -> AlgorithmRules:
    """What FAUXRDMA_ALGO says. Raises ConfigError for an algorithm or operation there is not, or a plan file with a
    mistake."""
    lists = _split(text, ALGO_VARIABLE, {name: name for name in known}, whole=CHOSEN_ELSEWHERE)
    by_operation: dict[str, str] = {}
    everywhere = lists.get("")
    if everywhere is not None:
        having = _operations_with(everywhere, known)
        if not having:
            every = sorted({name for names in known.values() for name in names})
            raise ConfigError(
                f"{ALGO_VARIABLE}={text!r}: no operation has an algorithm {everywhere!r}; there are auto, file:PATH, "
                f"{', '.join(every)}"
            )
        by_operation.update(dict.fromkeys(having, everywhere))
    for operation, name in lists.items():
        if operation:
            if name not in known[operation] and not name.startswith(CHOSEN_ELSEWHERE):
                raise ConfigError(
                    f"{ALGO_VARIABLE}={text!r}: {operation} has no algorithm {name!r}; choose auto, file:PATH, "
                    f"{', '.join(known[operation])}"
                )
            by_operation[operation] = name
    return AlgorithmRules(by_operation)


def _operations_with(algorithm: str, known: Known) -> list[str]:
    """The operations that an algorithm is for: of a file the one it describes."""
    if algorithm.startswith(FILE_PREFIX):
        from fauxrdma.collectives.plan_file import operation_of_file  # brings a YAML parser, which others do not need

        return [operation_of_file(algorithm.removeprefix(FILE_PREFIX))]
    return [operation for operation, names in known.items() if algorithm in names or algorithm == AUTO]


def _split(text: str, variable: str, functions: Mapping[str, str], whole: tuple[str, ...] = ()) -> dict[str, str]:
    """The lists by function; that for all functions, which only the first may be, under ''."""
    lists: dict[str, str] = {}
    for number, part in enumerate(text.split(";")):
        part = part.strip()
        head, colon, rest = part.partition(":")
        function = head.strip().lower()
        if colon and not part.startswith(tuple(word for word in whole if word.endswith(":"))):
            if function not in functions:
                raise ConfigError(f"{variable}={text!r}: {head!r} is none of {', '.join(functions)}")
        elif number:
            raise ConfigError(
                f"{variable}={text!r}: only the first list may go without a name; {part!r} needs one of "
                f"{', '.join(functions)} and a colon in front of it"
            )
        else:
            function, rest = "", part
        if not rest.strip():
            raise ConfigError(f"{variable}={text!r} has an empty list: name an algorithm, or leave it out")
        if function in lists:
            raise ConfigError(f"{variable}={text!r} has two lists for {function}")
        lists[function] = rest.strip()
    return lists
