from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.mission.belief import (
    bayes_update,
    entropy,
    entropy_left,
    interest_weight,
    reading_odds,
    reading_shift,
)

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


def test_entropy_in_bits():
    assert entropy(torch.tensor([0.5, 0.25, 0.0])).tolist() == pytest.approx(
        [
            1.0,
            0.25 * 2 + 0.75 * np.log2(4 / 3),
            0.00147,
        ],
        abs=1e-5,
    )


def test_interest_weight_has_three_levels():
    p = torch.tensor([0.0, 0.4989, 0.4991, 0.5, 0.5009, 0.5011, 1.0])
    assert interest_weight(p).tolist() == [0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 1.0]
