"""Pilots keep their distance and end with a reason, whatever fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.commands import TIMES
from tests.soak.dry_flights import Soak


@pytest.mark.parametrize("seed", [2979, 3147, 6169, 12963])
def test_flights_that_once_broke_a_rule_break_none(seed: int, tmp_path: Path) -> None:
    """UAVs returned together, held or waited for ever, or were in the air and called landed."""
    assert Soak(tmp_path).fly(seed).broken is None


@pytest.mark.soak
def test_no_flight_with_faults_breaks_a_rule(tmp_path: Path) -> None:
    soak = Soak(tmp_path)
    broken = {seed: soak.fly(seed).broken for seed in range(100 * TIMES)}
    assert {seed: rule for seed, rule in broken.items() if rule} == {}
