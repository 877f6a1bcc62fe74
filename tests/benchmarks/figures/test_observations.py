"""The figures of the observations."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from benchmarks import tables
from benchmarks.figures import observations
from benchmarks.reference import plain_mission
from marl_framework.config.learning import ObservationConfig
from marl_framework.config.loading import load_config


@pytest.mark.soak
def test_every_channel_is_drawn(tmp_path, capsys):
    assert observations.main([str(tmp_path), "--config", "params_test.yaml"]) == 0
    names = {path.stem for path in tmp_path.iterdir()}
    channels = {*ObservationConfig().actor_channels, "global_position", "global_entropy",
                "global_probability", "global_footprint", "global_uncertainty", "other_actions",
                "uncertainty"}  # fmt: skip
    assert names == {*channels, "centred", "mission", "area"}
    for path in tmp_path.iterdir():
        assert cv2.imread(str(path)) is not None
        assert path.stat().st_size < 200_000
    kornia, ours = capsys.readouterr().out.splitlines()[-1].split()[-2:]
    assert float(ours) < 1e-6 < 1e-3 < float(kornia)


def test_the_drawn_square_is_the_averaged_one(monkeypatch):
    config = load_config("params_test.yaml")
    clipped = 0
    for mission in range(4):
        monkeypatch.setattr(observations, "MISSION", mission)
        scene = observations.fly(config)
        pooled = plain_mission.area(scene.square, config.geometry.lattice_shape)
        entropy = plain_mission.entropy(pooled)
        np.testing.assert_allclose(scene.observation["local_entropy"], entropy, atol=1e-4)
        clipped += bool((scene.square == 0.5).any())
    assert clipped


def test_the_page_describes_the_drawn_mission():
    scene = observations.fly(load_config("params.yaml"))
    altitude = scene.config.geometry.altitudes[scene.positions[scene.uav, 2]]
    page = (tables.ROOT / "docs/observations.md").read_text(encoding="utf-8")
    assert f"after {len(scene.flown) - 1} random moves" in page
    assert f"number {scene.uav + 1} of 4, at {altitude:g} m" in page
    assert (scene.square[:, -1] == 0.5).all()  # the top lies beyond the map
    assert scene.state.heard[0, scene.uav].sum() == 3  # all but the ring


def test_a_folder_that_cannot_be_made_is_named(tmp_path, refused):
    (tmp_path / "file").touch()
    given = [tmp_path / "file" / "below", "--config", "params_test.yaml"]
    assert f"{tmp_path}/file" in refused(observations, *given)
