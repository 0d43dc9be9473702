"""The mutation run itself takes minutes (`make mutation`); here: every bug can be planted, and one is noticed."""

from __future__ import annotations

import ast

import pytest
from mutants import MUTANTS, Mutant
from run_mutants import ROOT, mutated, run


def test_there_are_enough_of_them_and_each_is_another() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.path, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_can_be_planted(mutant: Mutant) -> None:
    source = (ROOT / mutant.path).read_text()
    changed = mutated(mutant, source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_one_is_noticed() -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "remote access is not checked"]
    assert run(mutant).startswith("killed by tests/semantics/test_completion_statuses.py::test_remote_access_error")
