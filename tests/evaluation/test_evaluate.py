"""The command line of the evaluation, in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.config.loading import config_to_dict, dump_config
from marl_framework.config.model import Config
from marl_framework.evaluate import main
from marl_framework.evaluation.comparison import batch_size
from marl_framework.runs.checkpoint import save_checkpoint
from tests.small import small_config

TRAINED = small_config(agents=2, compute={"device": "cpu"})


def write_checkpoint(path: Path, seed: int = 0, trained: Config = TRAINED, **changes: Any) -> Path:
    torch.manual_seed(seed)
    wrapper = COMAWrapper(trained, trained.network_sizes, "cpu")
    payload = {**wrapper.state_dict(), "config": config_to_dict(trained), **changes}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, payload)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose best and last checkpoints differ."""
    folder = tmp_path / "run"
    write_checkpoint(folder / "checkpoints" / "last.pt", 1, training_step=20)
    write_checkpoint(folder / "checkpoints" / "best.pt", 0, training_step=10)
    return folder


@pytest.fixture
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the drawing where a test is about something else."""
    monkeypatch.setattr("marl_framework.evaluation.comparison.draw", lambda *_: [])


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.usefixtures("drawn")
def test_an_evaluation_leaves_all_it_promises(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    out.mkdir(parents=True)
    (out / "notes.txt").write_text("of somebody else")
    arguments = ["--policies", "learned,random", "--checkpoint", str(run), "--missions", "3"]
    assert main([*arguments, "--out", str(out)]) == 0
    names = ["results.json", "table.txt", "curves.png", "mission_learned.gif"]
    names += [
        f"{kind}_{name}.png" for kind in ("mission", "film") for name in ("learned", "random")
    ]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "notes.txt"])
    printed = capsys.readouterr().out
    assert (out / "table.txt").read_text(encoding="utf-8") in printed
    assert printed.splitlines()[-len(names) :] == [str(out / name) for name in sorted(names)]
    assert "notes.txt" not in printed
    found = results(out)
    assert found["settings"]["checkpoint"] == str(run / "checkpoints" / "best.pt")
    assert found["settings"]["training_step"] == 10
    assert found["settings"]["seed"] == 10001
    assert found["settings"]["configuration"]["experiment"] == config_to_dict(TRAINED)["experiment"]
    for name in ("learned", "random"):
        rows = found["policies"][name]["roi_entropy"]
        assert [len(row) for row in rows] == [TRAINED.missions.episode_length + 2] * 3
    # Both fly the same missions: the first reading, at the start, is the same.
    first = [[row[1] for row in p["mll"]] for p in found["policies"].values()]
    assert first[0] == first[1]


@pytest.mark.usefixtures("_no_figures")
def test_the_same_command_gives_the_same_results(run: Path, tmp_path: Path) -> None:
    arguments = ["--policies", "random,learned", "--checkpoint", str(run), "--missions", "2"]
    outs = [tmp_path / name for name in ("a", "b", "c")]
    for out, seed in zip(outs, ("5", "5", "6"), strict=True):
        assert main([*arguments, "--seed", seed, "--out", str(out)]) == 0
    first, again, other = (results(out)["policies"] for out in outs)
    assert first == again
    assert first != other


@pytest.mark.usefixtures("_no_figures")
def test_a_run_without_best_uses_last(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints" / "best.pt").unlink()
    out = tmp_path / "out"
    arguments = ["--policies", "learned", "--checkpoint", str(run), "--missions", "1"]
    assert main([*arguments, "--out", str(out)]) == 0
    assert results(out)["settings"]["training_step"] == 20


@pytest.mark.usefixtures("_no_figures")
def test_former_keys_of_the_users_are_told_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--policies", "learned", "--checkpoint", str(run), "--missions", "1"]
    arguments += ["--set", "networks.gamma=0.9", "--communication", "0,25"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: override networks.gamma=0.9: ")
    assert "learning.gamma" in line


def test_the_world_may_come_from_another_file(run: Path, tmp_path: Path) -> None:
    world = small_config(
        agents=3, budget=6, compute={"device": "cpu"}, networks={"actor": {"conv_channels": 99}}
    )
    dump_config(world, tmp_path / "world.yaml")
    arguments = ["--policies", "learned", "--checkpoint", str(run), "--missions", "1"]
    arguments += ["--config", str(tmp_path / "world.yaml"), "--set", "mapping.prior=0.4"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    used = results(tmp_path / "out")["settings"]["configuration"]
    assert used["experiment"]["missions"]["n_agents"] == 3
    assert used["experiment"]["constraints"]["budget"] == 6
    assert used["mapping"]["prior"] == 0.4
    assert used["networks"]["actor"]["conv_channels"] == 8


@pytest.mark.usefixtures("_no_figures")
def test_random_flight_needs_no_checkpoint(tmp_path: Path) -> None:
    dump_config(TRAINED, tmp_path / "world.yaml")
    arguments = ["--policies", "random", "--config", str(tmp_path / "world.yaml")]
    arguments += ["--device", "cpu", "--missions", "1", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert results(tmp_path / "out")["settings"]["checkpoint"] is None


def test_all_classical_planners_and_the_oracle_fly(tmp_path: Path) -> None:
    dump_config(TRAINED, tmp_path / "world.yaml")
    names = ["coverage", "information_gain", "random", "oracle"]
    arguments = ["--policies", ",".join(names), "--config", str(tmp_path / "world.yaml")]
    arguments += ["--missions", "2", "--no-figures", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    found = results(tmp_path / "out")
    assert list(found["policies"]) == names
    assert len(found["differences"]) == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "results.json",
        "table.txt",
    ]


def test_several_teams_are_compared_in_one_table_and_figure(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path / "a.pt")
    sees_more = small_config(agents=2, compute={"device": "cpu"}, observation={"uncertainty": True})
    second = write_checkpoint(tmp_path / "b.pt", 1, sees_more)
    out = tmp_path / "out"
    teams = f"learned={first},random,learned={second}"
    assert main(["--policies", teams, "--missions", "2", "--out", str(out)]) == 0
    found = results(out)
    assert list(found["policies"]) == ["a.pt", "random", "b.pt"]
    assert found["settings"]["teams"] == {"a.pt": str(first), "b.pt": str(second)}
    assert (out / "curves.png").stat().st_size > 0
    alone = tmp_path / "alone"
    one = ["--checkpoint", str(second), "--policies", "learned", "--missions", "2"]
    assert main([*one, "--no-figures", "--out", str(alone)]) == 0
    assert results(alone)["policies"]["learned"] == found["policies"]["b.pt"]


@pytest.mark.usefixtures("_no_figures")
def test_teams_of_other_missions_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All fly the mission of the first one, so the order counts."""
    first = write_checkpoint(tmp_path / "a.pt")
    alike = write_checkpoint(tmp_path / "b.pt", 1)
    seen = {"uav": {"communication_range": 7.0}, "compute": {"device": "cpu"}}
    other = small_config(agents=2, budget=7, **seen)
    third = write_checkpoint(tmp_path / "c.pt", 1, other)
    teams = ["--policies", f"learned={first},learned={alike},learned={third}", "--missions", "2"]
    assert main([*teams, "--out", str(tmp_path / "out")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "another one" in line]
    (line,) = said
    assert line.startswith("all fly the mission of a.pt, and c.pt learned another one: ")
    for key in ("experiment.constraints.budget", "experiment.uav.communication_range"):
        assert key in line
    # What the command line sets is the same for all.
    same = ["--communication", "5", "--set", "experiment.constraints.budget=2"]
    assert main([*teams, *same, "--out", str(tmp_path / "same")]) == 0
    assert "another one" not in capsys.readouterr().out
    # A team of --checkpoint flies its mission, and so do all others.
    teams = ["--policies", f"learned={first}", "--checkpoint", str(third), "--missions", "2"]
    assert main([*teams, "--out", str(tmp_path / "led")]) == 0
    assert f"all fly the mission of {third}, and a.pt learned" in capsys.readouterr().out


@pytest.mark.usefixtures("_no_figures")
def test_a_trained_team_flies_with_any_number_and_any_radio(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--policies", "learned,random", "--checkpoint", str(run), "--missions", "2"]
    arguments += ["--agents", "2,5", "--communication", "0,inf", "--set", "environment.seed=9"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    labels = [f"agents_{n}_range_{r}" for n in (2, 5) for r in ("0", "inf")]
    found = results(tmp_path / "out")["combinations"]
    assert [each["name"] for each in found] == labels
    for each, agents in zip(found, (2, 2, 5, 5), strict=True):
        used = each["settings"]["configuration"]["experiment"]
        assert used["missions"]["n_agents"] == each["settings"]["agents"] == agents
        assert used["uav"]["communication_range"] in (0.0, "inf")
        assert len(each["policies"]["learned"]["f1"]) == 2
        assert (tmp_path / "out" / each["name"]).is_dir()  # of its figures
    # More UAVs map more.
    entropy = [each["summary"]["random"]["roi_entropy"]["mean"] for each in found]
    assert max(entropy[2:]) < min(entropy[:2])
    overview = capsys.readouterr().out.partition("ROI entropy [bit] / F1, means")[2]
    assert all(label in overview for label in labels)


def test_results_are_there_before_anything_is_drawn(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("marl_framework.evaluation.comparison.draw", interrupt)
    arguments = ["--policies", "random", "--checkpoint", str(run), "--missions", "1"]
    assert main([*arguments, "--out", str(tmp_path / "one")]) == 130
    assert len(results(tmp_path / "one")["policies"]["random"]["f1"]) == 1
    assert main([*arguments, "--agents", "1,2", "--out", str(tmp_path / "grid")]) == 130
    (only,) = results(tmp_path / "grid")["combinations"]
    assert only["name"] == "agents_1"
    assert "agents_1" in (tmp_path / "grid" / "table.txt").read_text(encoding="utf-8")
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.usefixtures("_no_figures")
def test_the_terrain_may_be_another(run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "my map: #1.npy", np.random.default_rng(0).random((90, 120)))
    raster = f"raster:{tmp_path / 'my map: #1.npy'}"
    arguments = ["--policies", "random", "--checkpoint", str(run), "--missions", "2"]
    for terrain, kinds in (("mixed", ["mixed"]), ("band", ["band"]), (raster, ["raster"])):
        out = tmp_path / kinds[0]
        extra = ["--set", "sensor.simulation.raster.resolution=1.5"] if terrain == raster else []
        assert main([*arguments, "--terrain", terrain, *extra, "--out", str(out)]) == 0
        assert results(out)["settings"]["terrain"] == kinds


@pytest.mark.usefixtures("_no_figures")
def test_a_sampling_team_flies_another_way_than_a_greedy_one(run: Path, tmp_path: Path) -> None:
    arguments = ["--policies", "learned", "--checkpoint", str(run), "--missions", "2"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    assert main([*arguments, "--sample", "--out", str(tmp_path / "b")]) == 0
    greedy, drawn = (results(tmp_path / name) for name in "ab")
    assert (greedy["settings"]["greedy"], drawn["settings"]["greedy"]) == (True, False)
    assert greedy["policies"]["learned"]["mll"] != drawn["policies"]["learned"]["mll"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policies", "learnt"], ["learnt", "learned, information_gain, coverage, random"]),
        (["--terrain", "hills"], ["--terrain hills", "split", "raster:PATH"]),
        (["--terrain", "raster:"], ["--terrain raster:", "raster:PATH"]),
        (["--terrain", "raster:nowhere.tif"], ["nowhere.tif"]),
        (["--agents", "two"], ["--agents two", "2,4,8"]),
        (["--agents", "2,2"], ["--agents 2,2", "once"]),
        (["--agents", "17"], ["experiment.missions.n_agents"]),
        (["--agents", "0"], ["experiment.missions.n_agents"]),
        (["--communication", "far"], ["--communication far", "0,25,inf"]),
        (["--communication", "-1"], ["--communication -1", "0,25,inf"]),
        (["--communication", "nan"], ["--communication nan", "0,25,inf"]),
        (
            [
                *("--policies", "coverage"),
                *("--set", "experiment.baselines.coverage.altitude=6"),
            ],
            ["experiment.baselines.coverage.altitude", "5, 10, 15"],
        ),
        (["--policies", ""], ["--policies", "random"]),
        (["--policies", "random,random"], ["once"]),
        (["--policies", "learned=nowhere.pt"], ["nowhere.pt"]),
        (["--policies", "learned=a,learned=a"], ["each run once"]),
        (["--policies", "random,learned=random"], ["none like a planner"]),
        (["--missions", "0"], ["--missions 0", "1 or more"]),
        (["--missions", "many"], ["--missions", "many"]),
        (["--seed", "-1"], ["--seed -1", "1048575"]),
        (["--seed", "1048576"], ["--seed 1048576"]),
        (["--checkpoint", "nowhere.pt"], ["nowhere.pt"]),
        (["--checkpoint", "{tmp}"], ["best.pt", "last.pt"]),
        (["--checkpoint", "{tmp}/world.yaml"], ["world.yaml"]),
        (["--config", "nowhere.yaml"], ["nowhere.yaml"]),
        (["--set", "networks.actor.conv_channels=16"], ["8x7x5x5 there, 16x7x5x5 here"]),
        (["--set", "experiment.constraints.num_actions=9"], ["does not fit", "num_actions"]),
        (["--set", "environment.x_dim=40"], ["does not fit", "lattice"]),
        (["--set", "observation.budget=false"], ["does not fit", "observation"]),
        (["--set", "environment.sed=4"], ["sed", "seed"]),
        (["--device", "tpu"], ["tpu"]),
        (["--surprise"], ["--surprise"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str],
    words: list[str],
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dump_config(TRAINED, tmp_path / "world.yaml")
    out = tmp_path / "out"
    given = ["--policies", "learned", "--checkpoint", str(run), "--missions", "1"]
    given += ["--out", str(out), *(text.format(tmp=tmp_path) for text in arguments)]
    assert exit_code(given) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert all(word in captured.err for word in words), captured.err
    assert not out.exists()


def test_checkpoints_that_lack_something_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--policies", "learned", "--out", str(tmp_path / "out"), "--checkpoint"]
    for key in ("config", "actor"):
        path = write_checkpoint(tmp_path / f"{key}.pt", **{key: None})
        assert exit_code([*arguments, str(path)]) == 2
        assert f"it lacks the key {key}" in capsys.readouterr().err
    broken = config_to_dict(TRAINED)
    broken["mapping"]["prior"] = 7
    path = write_checkpoint(tmp_path / "broken.pt", config=broken)
    assert exit_code([*arguments, str(path)]) == 2
    assert "mapping.prior" in capsys.readouterr().err


def test_something_to_fly_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--out", str(tmp_path / "out"), "--policies"]
    assert exit_code([*arguments, "random"]) == 2
    assert "--config" in capsys.readouterr().err
    dump_config(TRAINED, tmp_path / "world.yaml")
    assert exit_code([*arguments, "learned", "--config", str(tmp_path / "world.yaml")]) == 2
    assert "--checkpoint" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_flying(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        given = ["--policies", "learned", "--checkpoint", str(run), "--out", str(out)]
        assert exit_code(given) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "cannot be written" in captured.err
    assert exit_code(["--policies", "learned", "--checkpoint", str(run), "--out", ""]) == 2
    assert capsys.readouterr().err == "error: --out: name a folder\n"


@pytest.mark.parametrize("missions", [1, 50, 77, 100, 1000])
def test_batches_are_equal_and_bounded(missions: int) -> None:
    batch = batch_size(Config(), missions)
    batches = -(-missions // batch)
    assert 1 <= batch <= 100
    assert batches * batch - missions < batches


def exit_code(arguments: list[str]) -> object:
    """Return the exit code, whether returned or raised by the parser."""
    try:
        return main(arguments)
    except SystemExit as stop:
        return stop.code
