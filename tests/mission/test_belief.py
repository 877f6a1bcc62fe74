from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_framework.mission.belief import bayes_update, entropy, interest_weight
from marl_framework.mission.communication import hear

PROBABILITIES = st.floats(0.0, 1.0, width=32)


def logit(p: float) -> float:
    return float(np.log(p) - np.log1p(-p))


@given(
    p=PROBABILITIES,
    noise=st.floats(0.0099, 0.49),
    prior=st.floats(0.05, 0.95),
    sign=st.sampled_from([-1, 1]),
)
def test_update_adds_log_odds(p, noise, prior, sign):
    z = 1 - noise if sign > 0 else noise
    clamped = min(max(p, 1e-4), 1 - 1e-4)
    expected = 1 / (1 + np.exp(-(logit(clamped) + logit(z) - logit(prior))))
    updated = bayes_update(
        torch.tensor([p]), torch.tensor([sign], dtype=torch.int8), torch.tensor([noise]), prior
    )
    assert updated.item() == pytest.approx(expected, abs=2e-5)


@given(p=PROBABILITIES, prior=st.floats(0.05, 0.95))
def test_cells_without_a_reading_keep_every_bit(p, prior):
    belief = torch.tensor([p])
    updated = bayes_update(belief, torch.zeros(1, dtype=torch.int8), torch.tensor([0.1]), prior)
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


def test_hearing_by_distance_in_three_dimensions():
    metres = torch.tensor([[[0.0, 0.0, 5.0], [15.0, 20.0, 5.0], [15.0, 20.0, 15.0]]])
    nothing_fails = torch.zeros(1, 3, 3)
    heard = hear(metres, torch.tensor([25.0]), nothing_fails, 0.0)
    # 0 and 1 are exactly 25 m apart; 0 and 2 are sqrt(725) m apart; 1 and 2 are 10 m apart.
    assert heard[0].tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    alone = hear(metres, torch.tensor([0.0]), nothing_fails, 0.0)
    assert torch.equal(alone[0], torch.eye(3, dtype=torch.bool))
    assert hear(metres, torch.tensor([torch.inf]), nothing_fails, 0.0).all()


def test_messages_fail_below_the_rate_but_never_to_oneself():
    metres = torch.zeros(1, 2, 3)
    uniform = torch.tensor([[[0.0, 0.3], [0.29, 0.0]]])
    heard = hear(metres, torch.tensor([1.0]), uniform, 0.3)
    assert heard[0].tolist() == [[True, True], [False, True]]
