"""Every kernel has a plain version, and a test that holds its other versions equal to it."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marl_framework.kernels.versions import Kernel

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "marl_framework" / "kernels"
WING = {
    path.stem: import_module(f"marl_framework.kernels.{path.stem}")
    for path in sorted(FOLDER.glob("*.py"))
    if not path.stem.endswith(("_numba", "_triton"))
}
CONTRACTS = {name: module for name, module in WING.items() if hasattr(module, "KERNELS")}
ENTRIES: dict[str, Kernel] = {
    name: kernel for module in CONTRACTS.values() for name, kernel in module.KERNELS.items()
}

CELLS = "test_cells.test_loops_are_as_exact"
ROUNDS = "interpreted_windows.test_rounds_are_those_of_plain_operators"
MISSIONS = "test_loops.test_compiled_and_plain_missions_are_equal"
SEARCH = "../planners/test_search_loops"
UPDATES = "interpreted_updates.test_losses_and_gradients_are_those_of_autograd"
COMPARED_BY = {  # loops, Triton
    "clamp": ("", ROUNDS),
    "bayes": (CELLS, ROUNDS),
    "entropy": (CELLS, ROUNDS),
    "weight": (CELLS, ROUNDS),
    "uncertainty": (CELLS, ""),
    "area_pool": ("test_loops.test_rows_are_pooled_with_the_area_weights", ROUNDS),
    "random_words": ("test_words.test_loops_draw_the_words_of_numpy_on_any_number_of_threads", ""),
    "window_bits": ("", ROUNDS),
    "read": (MISSIONS, ROUNDS),
    "fuse_own": (MISSIONS, ROUNDS),
    "fuse_global": (MISSIONS, ROUNDS),
    "draw_actor_maps": ("", "interpreted_maps.test_maps_are_those_of_plain_operators"),
    "draw_critic_maps": ("", "interpreted_maps.test_maps_are_those_of_plain_operators"),
    "choose_actions": ("", "interpreted_maps.test_actions_are_those_drawn_one_by_one"),
    "sum_parts": (
        f"{SEARCH}.test_maps_of_beliefs_and_their_entropy",
        "interpreted_maps.test_sums_over_parts_are_those_of_the_loops",
    ),
    "outlook": (f"{SEARCH}.test_what_actions_would_bring", ""),
    "fly": (f"{SEARCH}.test_greedy_flights", ""),
    "advance": (f"{SEARCH}.test_a_search_chooses_the_same_with_and_without_loops", ""),
    "path_lengths": ("../planners/test_coverage.test_path_lengths_are_scipys", ""),
    "find_repeats": (f"{SEARCH}.test_repeated_paths", ""),
    "footprint_gains": (
        "../planners/test_information_gain.test_scores_equal_loops_over_cells",
        "",
    ),
    "convolve": ("", "interpreted_updates.test_bias_and_relu_are_those_of_plain_operators"),
    "take_turned": ("", "interpreted_updates.test_turned_transitions_are_those_of_plain_operators"),
    "policy_advantages": ("", UPDATES),
    "actor_gradient": ("", UPDATES),
    "critic_gradient": ("", UPDATES),
    "descent_rule": ("", "interpreted_updates.test_descent_rules_agree"),
}


def compiled(module: ModuleType, suffix: str) -> set[str]:
    """Return the functions of a file that Python or other files call."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    decorators = {"numba": ("njit", "loop("), "triton": ("triton.jit",)}[suffix]
    return {
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(d).startswith(decorators) for d in node.decorator_list)
        and not node.name.startswith("_")
    }


def test_contracts_claim_every_kernel_and_nothing_else() -> None:
    for contract, module in CONTRACTS.items():
        for suffix, field in (("numba", "loops"), ("triton", "triton")):
            names = [getattr(kernel, field) for kernel in module.KERNELS.values()]
            claimed = set(" ".join(names).split())
            if not (FOLDER / f"{contract}_{suffix}.py").exists():
                assert not claimed, contract
                continue
            pytest.importorskip(suffix)
            found = compiled(import_module(f"marl_framework.kernels.{contract}_{suffix}"), suffix)
            assert found - {"padded", "cell_weight"} == claimed, (contract, suffix)
    files = {path.stem.rsplit("_", 1)[0] for path in FOLDER.glob("*_*.py") if path.stem[0] != "_"}
    assert files == set(CONTRACTS)


@pytest.mark.parametrize("name", ENTRIES)
def test_a_kernel_has_a_plain_version_and_is_compared_with_it(name: str) -> None:
    kernel = ENTRIES[name]
    module, _, member = kernel.twin.rpartition(".")
    owner: Any
    try:
        owner = import_module(f"marl_framework.{module}")
    except ModuleNotFoundError:  # a method
        module, _, type_name = module.rpartition(".")
        owner = getattr(import_module(f"marl_framework.{module}"), type_name)
    plain = getattr(owner, member)
    assert callable(plain)
    assert plain.__doc__
    for versions, test in zip((kernel.loops, kernel.triton), COMPARED_BY[name], strict=True):
        assert bool(versions) == bool(test)
        if test:
            file, _, function = test.rpartition(".")
            text = (Path(__file__).parent / f"{file}.py").read_text(encoding="utf-8")
            assert f"\ndef {function}(" in text
