"""Every compiled function is held equal to plain operators by a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from marl_framework import kernels

TESTS = Path(__file__).parent
FILES = {
    path.stem: path
    for path in Path(kernels.__path__[0]).glob("*.py")
    if path.stem.endswith(("_numba", "_triton"))
}
CELLS = "test_cells.test_loops_are_as_exact"
MISSIONS = "test_loops.test_compiled_and_plain_missions_are_equal"
SEARCH = "../planners/test_search_loops"
ROUNDS = "interpreted_windows.test_rounds_are_those_of_plain_operators"
MAPS = "interpreted_maps.test_maps_are_those_of_plain_operators"
ACTIONS = "interpreted_maps.test_actions_are_those_drawn_one_by_one"
LOSSES = "interpreted_updates.test_losses_and_gradients_are_those_of_autograd"
COMPARED_BY = {
    "cells_numba": {
        "log2 entropy bayes uncertainty weight": CELLS,
        "cell_weight padded": MISSIONS,
        "pool_row": "test_loops.test_rows_are_pooled_with_the_area_weights",
        "sum_parts sum_parts_in_parallel": f"{SEARCH}.test_maps_of_beliefs_and_their_entropy",
    },
    "cells_triton": {
        "clamp bayes entropy weight share_of pool_columns": ROUNDS,
        "sum_parts": "interpreted_maps.test_sums_over_parts_are_those_of_the_loops",
    },
    "gains_numba": {
        "gains_loop": "../planners/test_information_gain.test_scores_equal_loops_over_cells"
    },
    "layers_triton": {
        "rectify": "interpreted_updates.test_bias_and_relu_are_those_of_plain_operators"
    },
    "maps_triton": {
        "draw_actor draw_critic": MAPS,
        "take": "interpreted_updates.test_turned_transitions_are_those_of_plain_operators",
    },
    "policies_triton": {
        "policy choose": ACTIONS,
        "advantages actor_loss critic_loss": LOSSES,
        "descent_rule": "interpreted_updates.test_descent_rules_agree",
    },
    "search_numba": {
        "outlook": f"{SEARCH}.test_what_actions_would_bring",
        "advance": f"{SEARCH}.test_a_search_chooses_the_same_with_and_without_loops",
        "path_lengths": "../planners/test_coverage.test_path_lengths_are_scipys",
        "find_repeats": f"{SEARCH}.test_repeated_paths",
    },
    "windows_numba": {"read_loop own_loop global_loop": MISSIONS},
    "windows_triton": {"window_bits read fuse add_parts": ROUNDS},
    "words_numba": {
        "fill": "test_words.test_loops_draw_the_words_of_numpy_on_any_number_of_threads"
    },
}
"""Test of each function, by file."""


def compiled(path: Path) -> set[str]:
    """Return the functions of a file that Python or other files call."""
    decorators = ("njit", "loop(", "triton.jit")
    return {
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(d).startswith(decorators) for d in node.decorator_list)
        and not node.name.startswith("_")
    }


@pytest.mark.parametrize("file", FILES)
def test_every_function_is_compared_with_plain_operators(file: str) -> None:
    assert compiled(FILES[file]) == set(" ".join(COMPARED_BY[file]).split())
    for test in COMPARED_BY[file].values():
        module, _, function = test.rpartition(".")
        text = (TESTS / f"{module}.py").read_text(encoding="utf-8")
        assert f"\ndef {function}(" in text
