"""Completed maps: Bayes' rule with a predicted prior, cell by cell."""

from pathlib import Path

import numpy as np
import pytest
import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.evaluation import comparison
from marl_framework.evaluation.flight import COMPLETED
from marl_framework.evaluation.metrics import map_metrics
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.completion import MARGIN, MapCompletion, make_completion
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import predictor_state
from marl_framework.runs.checkpoint import save_checkpoint
from tests.small import random_actions, small_config


def flown(env: MissionEnvironment) -> torch.Tensor:
    """Return the global beliefs after two moves."""
    state = env.reset()
    for _ in range(2):
        env.step(state, random_actions(env, state, env.generator))
    return state.global_belief.clone()


@pytest.mark.parametrize(("prior", "caution"), [(0.5, 1.0), (0.3, 0.6)])
def test_a_predicted_share_between_positions_takes_the_place_of_the_prior(
    prior: float, caution: float, device: torch.device
) -> None:
    config = small_config(dims=(30.0, 22.0), prior=prior, num_envs=3)
    env = MissionEnvironment(config, 3, device)
    beliefs, network = flown(env), MapPredictor(8).eval().to(device)
    torch.nn.init.normal_(network.far[-1].weight, std=200.0)  # some shares beyond the margin
    complete = MapCompletion(config, env.lattice, network)
    found = complete(beliefs, torch.tensor([1.0, caution, caution], device=device)).cpu().numpy()

    with torch.no_grad():
        logits = network(*LatticeView(config, env.lattice, PARTS).entropy_maps(beliefs))
    shares = logits.double().sigmoid().clamp(MARGIN, 1 - MARGIN).cpu().numpy()
    assert (shares == MARGIN).any()
    odds = np.log(shares / (1 - shares))
    (rows, cols), (res_x, res_y) = config.geometry.map_shape, config.geometry.cell_size
    x, y = ((np.arange(n) + 0.5) * res for n, res in ((rows, res_x), (cols, res_y)))
    places = [5.0 * np.arange(n) for n in env.lattice.shape[:2]]
    for e, belief in enumerate(beliefs.double().cpu().numpy()):
        along = np.stack([np.interp(x, places[0], row) for row in odds[e].T], 1)
        change = np.stack([np.interp(y, places[1], row) for row in along])
        p = belief.clip(1e-4, 1 - 1e-4)
        read = (p / (1 - p) * (1 - prior) / prior) ** (caution if e else 1.0)
        factor = read * np.exp(change)
        np.testing.assert_allclose(found[e], factor / (1 + factor), atol=1e-4)


def test_cells_outside_a_field_stay_outside() -> None:
    config = load_config("params_fast.yaml", ["environment.field=random"])
    flights = comparison.prepare(config, torch.device("cpu"), ["random"], 1, 102)
    record = flights.fly()["random"]
    assert record.completed is not None
    assert record.inside is not None
    assert 0 < record.inside.float().mean() < 1
    assert (record.completed[~record.inside] == 0).all()
    assert (record.completed[record.inside] > 0).all()


def test_the_included_predictor_corrects_beliefs_of_a_worse_camera() -> None:
    worse = [f"sensor.reality.{rate}=0.05" for rate in ("miss", "false_alarm")]
    config = load_config("params_fast.yaml", worse)
    flights = comparison.prepare(config, torch.device("cpu"), ["coverage"], 8, 102)
    (record,) = flights.fly().values()
    final = {name: values[:, -1].mean().item() for name, values in record.metrics.items()}
    assert final["completed_ece"] < 0.3 * final["ece"]
    assert final["completed_brier"] < 0.3 * final["brier"]
    assert final["completed_roi_entropy"] < 0.3 * final["roi_entropy"]
    assert final["completed_f1"] > final["f1"] + 0.2


def test_a_record_measures_the_completed_map() -> None:
    config = small_config()
    flights = comparison.prepare(config, torch.device("cpu"), ["random"], 5, 102)
    record = flights.fly()["random"]
    assert record.completed is not None
    lattice = flights.environments["random"].lattice
    completion = make_completion(config, lattice)
    assert completion is not None
    caution = record.metrics["learned_caution"][: len(record.belief), 0]
    torch.testing.assert_close(record.completed, completion(record.belief, caution))
    adapts = {"model": {"adapt": True}}  # beliefs count the learned caution already
    for changes, fixed in (({"evaluation": {"caution": 0.7}}, 0.7), ({"sensor": adapts}, 1.0)):
        complete = make_completion(small_config(**changes), lattice)
        assert complete is not None
        expected = completion(record.belief, torch.full_like(caution, fixed))
        for given in (None, caution / 2):
            torch.testing.assert_close(complete(record.belief, given), expected)
    seen = record.truth.new_ones(record.completed.shape)  # ROI entropy and F1 need no `seen`
    expected = map_metrics(record.completed, record.truth, seen)
    for name in ("roi_entropy", "f1"):
        assert record.metrics[f"completed_{name}"].shape == (5, 1)
        found = record.metrics[f"completed_{name}"][: len(record.truth), 0]
        torch.testing.assert_close(found, expected[name])


def test_another_predictor_or_none_completes(tmp_path: Path) -> None:
    file = tmp_path / "predictor.pt"
    save_checkpoint(file, predictor_state(MapPredictor(8), 8))
    own, none, wrong = (
        small_config(evaluation={"predictor": name})
        for name in (str(file), None, "pretrained:student")
    )
    env = MissionEnvironment(own, 2, "cpu")
    beliefs = flown(env)
    completed = [
        completion(beliefs)
        for config in (own, small_config())
        if (completion := make_completion(config, env.lattice)) is not None
    ]
    assert not torch.equal(*completed)
    (record,) = comparison.prepare(none, env.device, ["random"], 2, 102).fly().values()
    assert record.completed is None
    assert not {*COMPLETED, "learned_caution"} & record.metrics.keys()
    with pytest.raises(ConfigError, match=r"evaluation\.predictor: .* not a checkpoint of a"):
        comparison.prepare(wrong, env.device, ["random"], 2, 102)
