"""Threads that share the missions of a search."""

import threading

import pytest
import torch

from marl_framework.planners.search.threads import on_threads


@pytest.fixture(autouse=True)
def _three_threads() -> None:
    torch.set_num_threads(3)


def test_each_row_has_a_thread_of_one_core_and_results_keep_their_order() -> None:
    def work(a: int, b: int) -> tuple[int, int, int]:
        return a * b, threading.get_ident(), torch.get_num_threads()

    products, threads, cores = zip(*on_threads(work, [1, 2, 3], [4, 5, 6]), strict=True)
    assert products == (4, 10, 18)
    assert len(set(threads) - {threading.get_ident()}) == 3
    assert set(cores) == {1}
    assert torch.get_num_threads() == 3


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    def work(row: int) -> None:
        raise RuntimeError(f"no row {row} today")

    with pytest.raises(RuntimeError, match="no row 1 today"):
        on_threads(work, [1, 2])
