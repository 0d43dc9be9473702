"""What users set in the environment: NCCL's variables and ours, and what is said of mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fauxrdma.communicator.settings import CollectiveSettings
from fauxrdma.communicator.settings.algorithm_rules import parse_nccl_algo, parse_own_algo
from fauxrdma.communicator.settings.hca_filter import parse_hca_filter
from fauxrdma.errors import ConfigError

KNOWN = {
    "all_reduce": ["ring", "double-tree", "hierarchical"],
    "all_gather": ["ring", "hierarchical"],
    "reduce_scatter": ["ring"],
    "broadcast": ["chain", "binomial-tree"],
    "reduce": ["binomial-tree"],
    "all_to_all": ["pairwise", "pxn"],
}
DEVICES = [f"hca{i}" for i in range(1, 12)]


def settings(**environment: str) -> CollectiveSettings:
    return CollectiveSettings.from_env(KNOWN, environment)


def test_nothing_set_is_one_channel_and_defaults_everywhere() -> None:
    found = settings()
    assert (found.channels, found.cross_nic, found.pxn, found.verbose) == (1, None, True, False)
    assert all(found.algorithms.algorithm(operation) is None for operation in KNOWN)
    assert all(map(found.hcas.allows, DEVICES))
    assert settings(NCCL_CROSS_NIC="", NCCL_ALGO="", NCCL_IB_HCA="", NCCL_DEBUG="") == found


# NCCL_IB_HCA.


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("hca", DEVICES),
        ("hca1", ["hca1", "hca10", "hca11"]),  # a prefix, as in NCCL
        ("=hca1", ["hca1"]),
        ("=hca1:1,hca3:1", ["hca1", "hca3"]),
        ("^=hca1,hca3", [d for d in DEVICES if d not in ("hca1", "hca3")]),
        ("^hca1", [f"hca{i}" for i in range(2, 10)]),
        ("=mlx5_0,mlx5_2", ["hca1", "hca3"]),  # what most clusters call them
        ("mlx5_1", ["hca2", "hca11"]),
        ("=hca2:1:0:0,hca4::1:0", ["hca2", "hca4"]),
    ],
)
def test_which_hcas_may_be_used(text: str, allowed: list[str]) -> None:
    assert [device for device in DEVICES if parse_hca_filter(text).allows(device)] == allowed


def test_rails_are_those_the_list_gives() -> None:
    found = parse_hca_filter("=hca1::0,hca2:1:1:0,hca3,hca4:1:-1")
    assert [found.rail(f"hca{i}") for i in range(1, 6)] == [0, 1, None, None, None]
    assert parse_hca_filter("^=hca1::3").rail("hca1") is None


def test_who_may_not_use_its_own_hca_gets_another_and_not_all_the_same() -> None:
    found, devices = parse_hca_filter("=hca2,hca4"), [f"hca{i}" for i in range(1, 5)]
    assert [found.choose(device, devices) for device in devices] == ["hca2", "hca2", "hca4", "hca4"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("=", "names no HCA"),
        ("hca1,,hca2", "'' is not NAME"),
        ("hca1:x", "'hca1:x' is not NAME"),
        ("hca1:1:0:0:0", "is not NAME"),
        ("hca1:2", "asks for port 2; emulated HCAs have port 1"),
    ],
)
def test_lists_of_hcas_that_make_no_sense(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match="NCCL_IB_HCA=.*" + re.escape(words)):
        parse_hca_filter(text)


def test_a_list_without_any_hca_of_this_node_says_what_there_is() -> None:
    with pytest.raises(
        ConfigError, match=r"'mlx4' leaves no HCA to use: this node has hca1, hca2 .also known as mlx5_0"
    ):
        parse_hca_filter("mlx4").choose("hca1", ["hca1", "hca2"])


# NCCL_ALGO.


def nccl(text: str) -> dict[str, str | None]:
    rules = parse_nccl_algo(text, KNOWN)
    return {name: None if name in rules.refused else rules.algorithm(name) or "default" for name in KNOWN}


def test_nccl_algo() -> None:
    """The examples of NCCL's documentation; None: nothing is left to the function."""
    ring = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "broadcast": "chain"}
    assert nccl("Ring") == {**ring, "reduce": None, "all_to_all": "default"}
    assert nccl("ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring") == {
        **ring,
        "all_reduce": "double-tree",
        "reduce": None,
        "all_to_all": "default",
    }
    default = dict.fromkeys(KNOWN, "default")
    assert nccl("allreduce:^tree") == {**default, "all_reduce": "ring"}
    assert nccl("^Ring;AllGather:ring") == {
        "all_reduce": "double-tree",
        "all_gather": "ring",
        "reduce_scatter": None,
        "broadcast": "binomial-tree",
        "reduce": "binomial-tree",
        "all_to_all": "default",
    }
    assert nccl("Ring,Tree,CollNetDirect,CollNetChain,NVLS,NVLSTree,PAT")["all_reduce"] == "ring"


def test_a_function_without_any_algorithm_left_is_refused_when_called() -> None:
    rules = parse_nccl_algo("NVLS", KNOWN)
    with pytest.raises(ConfigError, match="NCCL_ALGO='NVLS' leaves no algorithm for all_reduce, which has ring, tree"):
        rules.algorithm("all_reduce")
    assert rules.algorithm("all_to_all") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rnig", "there is no algorithm 'rnig'; NCCL has ring, tree, collnet"),
        ("allredux:ring", "'allredux' is none of allreduce, allgather"),
        ("ring;tree", "only the first list may go without a name"),
        ("allreduce:", "an empty list"),
        ("allreduce:ring;allreduce:tree", "two lists for allreduce"),
    ],
)
def test_nccl_algo_that_makes_no_sense(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"NCCL_ALGO='{re.escape(text)}'.*{re.escape(words)}"):
        settings(NCCL_ALGO=text)


# FAUXRDMA_ALGO.


def test_own_algorithms_go_first() -> None:
    found = settings(NCCL_ALGO="ring", FAUXRDMA_ALGO="hierarchical;all_to_all:pxn").algorithms
    assert {name: found.algorithm(name) for name in KNOWN if name not in found.refused} == {
        "all_reduce": "hierarchical",
        "all_gather": "hierarchical",
        "reduce_scatter": "ring",
        "broadcast": "chain",
        "all_to_all": "pxn",
    }
    found = settings(NCCL_ALGO="ring", FAUXRDMA_ALGO="reduce:binomial-tree").algorithms
    assert found.algorithm("reduce") == "binomial-tree"


def test_auto_and_files_are_chosen_elsewhere() -> None:
    assert {parse_own_algo("auto", KNOWN).algorithm(name) for name in KNOWN} == {"auto"}
    found = parse_own_algo("auto;all_reduce:file:/tmp/a plan.json", KNOWN)
    assert found.algorithm("all_reduce") == "file:/tmp/a plan.json"
    assert found.algorithm("reduce") == "auto"
    # A file on its own is for the operation that it describes.
    ring = f"file:{Path(__file__).resolve().parents[2] / 'examples' / 'plans' / 'ring_all_reduce.yaml'}"
    assert dict(parse_own_algo(ring, KNOWN).by_operation) == {"all_reduce": ring}
    with pytest.raises(ConfigError, match="no such file"):
        parse_own_algo("file:none.yaml", KNOWN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rings", "no operation has an algorithm 'rings'; there are auto, file:PATH, binomial-tree, chain"),
        ("all_to_all:ring", "all_to_all has no algorithm 'ring'; choose auto, file:PATH, pairwise, pxn"),
        ("allreduce:ring", "'allreduce' is none of all_reduce, all_gather"),
    ],
)
def test_own_algorithms_that_make_no_sense(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"FAUXRDMA_ALGO='{text}'.*{re.escape(words)}"):
        settings(FAUXRDMA_ALGO=text)


# Numbers and switches.


@pytest.mark.parametrize(
    ("environment", "channels"),
    [
        ({"NCCL_MIN_NCHANNELS": "4"}, 4),
        ({"NCCL_MAX_NCHANNELS": "4"}, 1),
        ({"NCCL_MAX_NCHANNELS": "64", "NCCL_MIN_NCHANNELS": "2"}, 2),
        ({"NCCL_MIN_NCHANNELS": "4", "NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "8"}, 8),
        ({"NCCL_MIN_NRINGS": "2"}, 2),
        ({"NCCL_MIN_NCHANNELS": "4", "FAUXRDMA_CHANNELS": "2"}, 2),
    ],
)
def test_channels(environment: dict[str, str], channels: int) -> None:
    assert settings(**environment).channels == channels


def test_switches() -> None:
    assert settings(NCCL_PXN_DISABLE="1").pxn is False
    assert settings(NCCL_PXN_DISABLE="0").pxn is True
    assert [settings(NCCL_CROSS_NIC=str(policy)).cross_nic for policy in range(3)] == [0, 1, 2]
    assert settings(NCCL_DEBUG="INFO").verbose
    assert settings(FAUXRDMA_DEBUG="1").verbose
    assert not settings(NCCL_DEBUG="warn", FAUXRDMA_DEBUG="0").verbose


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"NCCL_CROSS_NIC": "3"}, "NCCL_CROSS_NIC='3': it must be a whole number from 0 to 2"),
        ({"NCCL_CROSS_NIC": "yes"}, "NCCL_CROSS_NIC='yes'"),
        ({"NCCL_PXN_DISABLE": "true"}, "NCCL_PXN_DISABLE='true': it must be a whole number from 0 to 1"),
        ({"NCCL_MIN_NCHANNELS": "0"}, "NCCL_MIN_NCHANNELS='0': it must be a whole number from 1 to 32"),
        ({"FAUXRDMA_CHANNELS": "-1"}, "FAUXRDMA_CHANNELS='-1'"),
        (
            {"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_CTAS": "2"},
            "NCCL_MIN_NCHANNELS=4 asks for more channels than NCCL_MAX",
        ),
        ({"NCCL_DEBUG": "LOUD"}, "NCCL_DEBUG='LOUD': it is one of VERSION, WARN"),
    ],
)
def test_mistakes_are_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        settings(**environment)
