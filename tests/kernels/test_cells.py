"""Single cells: formulas, and the loops against them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from marl_framework.kernels import cells_numba
from marl_framework.kernels.cells import (
    PROBABILITY_FLOOR,
    bayes_update,
    entropy,
    interest_weight,
    uncertainty,
)
from marl_framework.mission.sensor import entropy_left, reading_odds, reading_shift
from tests.small import small_config

PROBABILITIES = st.floats(0.0, 1.0, width=32)


def logit(p: float) -> float:
    return float(np.log(p) - np.log1p(-p))


@given(
    p=PROBABILITIES,
    miss=st.floats(0.0099, 0.9),
    share=st.floats(0.01, 0.98),
    prior=st.floats(0.05, 0.95),
    sign=st.sampled_from([-1, 1]),
)
def test_update_is_the_rule_of_bayes(p, miss, share, prior, sign):
    false_alarm = share * (1 - miss)
    of_interest, of_none = (1 - miss, false_alarm) if sign > 0 else (miss, 1 - false_alarm)
    clamped = min(max(p, 1e-4), 1 - 1e-4)
    evidence = np.log(of_interest) - np.log(of_none)
    expected = 1 / (1 + np.exp(-(logit(clamped) + evidence - logit(prior))))
    odds = reading_odds(torch.tensor([[miss, false_alarm]]))
    updated = bayes_update(torch.tensor([p]), torch.tensor([sign], dtype=torch.int8), odds, prior)
    assert updated.item() == pytest.approx(expected, abs=5e-5)


@given(miss=st.floats(0.001, 0.9), share=st.floats(0.01, 0.99))
def test_expected_entropy_of_an_undecided_cell_by_its_definition(miss, share):
    false_alarm = share * (1 - miss)
    positive = (1 - miss + false_alarm) / 2
    expected = 0.0
    for probability, joint in ((positive, (1 - miss) / 2), (1 - positive, miss / 2)):
        after = min(max(joint / probability, 1e-4), 1 - 1e-4)
        expected -= probability * (after * np.log2(after) + (1 - after) * np.log2(1 - after))
    found = entropy_left(torch.tensor([miss, false_alarm], dtype=torch.float64)).item()
    assert found == pytest.approx(expected, abs=1e-9)


@given(noise=st.floats(2**-20, 0.5 - 2**-10, width=32))
def test_a_symmetric_sensor_leaves_the_entropy_of_its_noise_bit_for_bit(noise):
    rates = torch.tensor([noise, noise])
    assert torch.equal(entropy_left(rates), entropy(torch.tensor(noise)))
    assert torch.equal(reading_shift(rates), 0.5 - rates)


@given(p=PROBABILITIES, prior=st.floats(0.05, 0.95))
def test_cells_without_a_reading_keep_every_bit(p, prior):
    belief, odds = torch.tensor([p]), torch.tensor([[9, 0.1]])
    updated = bayes_update(belief, torch.zeros(1, dtype=torch.int8), odds, prior)
    assert torch.equal(updated, belief)


def test_the_prior_of_a_configuration_has_the_limits_of_beliefs():
    assert small_config(prior=PROBABILITY_FLOOR).mapping.prior == PROBABILITY_FLOOR
    with pytest.raises(ValidationError):
        small_config(prior=0.99 * PROBABILITY_FLOOR)


def test_interest_weight_has_three_levels():
    p = torch.tensor([0.0, 0.4989, 0.4991, 0.5, 0.5009, 0.5011, 1.0])
    assert interest_weight(p).tolist() == [0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 1.0]


def test_loops_are_as_exact():
    near = [np.nextafter(x, x + d, dtype=np.float32) for x in (0.499, 0.501) for d in (-1, 0, 1)]
    p = np.concatenate([np.linspace(0, 1, 20001), np.geomspace(1e-4, 1, 2000), near])
    p = p.astype(np.float32)
    exact = p.astype(np.float64).clip(1e-4, 1 - 1e-4)
    logs = [cells_numba.log2(np.float32(x)) for x in exact]
    np.testing.assert_allclose(logs, np.log2(exact.astype(np.float32)), atol=2e-6, rtol=2e-7)
    expected = -exact * np.log2(exact) - (1 - exact) * np.log2(1 - exact)
    cells, odds = torch.from_numpy(p), torch.tensor([3.0, 0.25])
    for name, plain, tolerance in (
        ("entropy", entropy(cells), 1e-6),
        ("uncertainty", uncertainty(cells), 1e-6),
        ("weight", interest_weight(cells), 0),
    ):
        found = [getattr(cells_numba, name)(x) for x in p]
        np.testing.assert_allclose(found, plain, atol=tolerance, rtol=0, err_msg=name)
    np.testing.assert_allclose(entropy(cells), expected, atol=1e-6)
    np.testing.assert_allclose(uncertainty(cells), exact * expected, atol=1e-6)
    for sign, factor in zip((1, -1), odds.tolist(), strict=True):
        plain = bayes_update(cells, torch.tensor(sign), odds)
        found = [cells_numba.bayes(x, np.float32(factor)) for x in p]
        np.testing.assert_allclose(found, plain, rtol=1e-6)
