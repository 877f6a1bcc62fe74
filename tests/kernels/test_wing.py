"""Every compiled function has a plain version, and a test that holds it equal to that."""

from __future__ import annotations

import ast
from pathlib import Path
from pkgutil import resolve_name

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
VIEW = "observations.lattice_view.LatticeView"
BUILDER = "observations.builder.ObservationBuilder"
COMPARED_BY: dict[str, dict[str, tuple[str, str]]] = {
    "cells_numba": {
        "log2 entropy": ("kernels.cells.entropy", CELLS),
        "bayes": ("kernels.cells.bayes_update", CELLS),
        "uncertainty": ("kernels.cells.uncertainty", CELLS),
        "weight": ("kernels.cells.interest_weight", CELLS),
        "cell_weight padded": ("kernels.windows.fuse_own", MISSIONS),
        "pool_row": (
            "kernels.cells.area_pool",
            "test_loops.test_rows_are_pooled_with_the_area_weights",
        ),
        "sum_parts sum_parts_in_parallel": (
            f"{VIEW}.entropy_maps",
            f"{SEARCH}.test_maps_of_beliefs_and_their_entropy",
        ),
    },
    "cells_triton": {
        "clamp": ("kernels.cells.clamp_probability", ROUNDS),
        "bayes": ("kernels.cells.bayes_update", ROUNDS),
        "entropy": ("kernels.cells.entropy", ROUNDS),
        "weight": ("kernels.cells.interest_weight", ROUNDS),
        "share_of pool_columns": ("kernels.cells.area_pool", ROUNDS),
        "sum_parts": (
            f"{VIEW}.entropy_maps",
            "interpreted_maps.test_sums_over_parts_are_those_of_the_loops",
        ),
    },
    "gains_numba": {
        "gains_loop": (
            "planners.information_gain.InformationGainPlanner.scores",
            "../planners/test_information_gain.test_scores_equal_loops_over_cells",
        )
    },
    "layers_triton": {
        "rectify": (
            "networks.layers.Convolution",
            "interpreted_updates.test_bias_and_relu_are_those_of_plain_operators",
        )
    },
    "maps_triton": {
        "draw_actor": (f"{BUILDER}.actor", MAPS),
        "draw_critic": (f"{BUILDER}.critic_only", MAPS),
        "show": ("observations.window.Window.show", MAPS),
        "take": (
            "observations.symmetry.Symmetries.apply",
            "interpreted_updates.test_turned_transitions_are_those_of_plain_operators",
        ),
    },
    "policies_triton": {
        "choose": ("algorithms.rollout.draw_one_by_one", ACTIONS),
        "policy advantages": ("algorithms.losses.counterfactual_advantage", LOSSES),
        "actor_loss": ("algorithms.losses.actor_loss", LOSSES),
        "critic_loss": ("algorithms.losses.critic_loss", LOSSES),
        "descent_rule": (
            "algorithms.optimisers.step_rule",
            "interpreted_updates.test_descent_rules_agree",
        ),
    },
    "search_numba": {
        "outlook": (f"{VIEW}.score_actions", f"{SEARCH}.test_what_actions_would_bring"),
        "advance": (
            f"{VIEW}.apply_readings",
            f"{SEARCH}.test_a_search_chooses_the_same_with_and_without_loops",
        ),
        "path_lengths": (
            "planners.coverage.path_lengths",
            "../planners/test_coverage.test_path_lengths_are_scipys",
        ),
        "find_repeats": ("planners.search.beam.repeats", f"{SEARCH}.test_repeated_paths"),
    },
    "windows_numba": {
        "read_loop": ("kernels.windows.read", MISSIONS),
        "own_loop": ("kernels.windows.fuse_own", MISSIONS),
        "global_loop": ("kernels.windows.fuse_global", MISSIONS),
    },
    "windows_triton": {
        "window_bits": ("kernels.windows.window_bits", ROUNDS),
        "read": ("kernels.windows.read", ROUNDS),
        "fuse add_parts": ("kernels.windows.fuse_own", ROUNDS),
    },
    "words_numba": {
        "fill": (
            "kernels.words.random_words",
            "test_words.test_loops_draw_the_words_of_numpy_on_any_number_of_threads",
        )
    },
}
"""Plain version of each function, and the test that compares them, by file."""


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
def test_every_function_has_a_plain_version_and_is_compared_with_it(file: str) -> None:
    assert compiled(FILES[file]) == set(" ".join(COMPARED_BY[file]).split())
    for plain, test in COMPARED_BY[file].values():
        found = resolve_name(f"marl_framework.{plain}")
        assert callable(found)
        assert found.__doc__
        module, _, function = test.rpartition(".")
        text = (TESTS / f"{module}.py").read_text(encoding="utf-8")
        assert f"\ndef {function}(" in text
