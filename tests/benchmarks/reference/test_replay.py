"""Recorded steps: the library passes, and deviations are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.reference import record, replay
from tests.conftest import DEVICES

FOLDER = Path(__file__).parents[2] / "data" / "replay"
CASE = FOLDER / "case_01.npz"


def load(path: Path = CASE) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def table(text: str) -> dict[str, str]:
    """Return the result of each row of the printed table."""
    lines = [line.strip() for line in text.splitlines()[4:] if line.startswith("  ")]
    rows = [line.rsplit(maxsplit=1) for line in lines]
    return {line.split("  ")[0]: result for line, result in rows}


@pytest.mark.parametrize("device", DEVICES)
def test_recorded_cases_pass(device, capsys):
    assert replay.main([str(FOLDER), "--device", device]) == 0
    out = capsys.readouterr().out
    results = table(out)
    assert set(results.values()) == {"pass"}
    assert len(results) == 11 + 7 + 12
    assert out.splitlines()[-1] == "5 cases, 30 arrays: all pass"


def test_recorded_cases_are_what_the_recorder_writes(tmp_path, capsys):
    assert record.main([str(tmp_path)]) == 0
    written, kept = sorted(tmp_path.iterdir()), sorted(FOLDER.iterdir())
    assert [path.name for path in written] == [path.name for path in kept]
    for new, old in zip(written, kept, strict=True):
        ours, theirs = load(new), load(old)
        assert ours.keys() == theirs.keys()
        assert ours.pop("config") == theirs.pop("config")
        for name, array in ours.items():
            np.testing.assert_allclose(array, theirs[name], atol=1e-6, err_msg=name)


def test_recorded_cases_cover_actions_collisions_radio_and_shapes():
    cases = [load(path) for path in sorted(FOLDER.iterdir())]
    assert {int(case["num_actions"]) for case in cases} == {4, 6, 9, 27}
    assert any((case["boundary_mask"] != case["action_mask"]).any() for case in cases)
    assert any((case["heard"] != case["heard"].T).any() for case in cases)
    assert any(case["truth"].shape[0] != case["truth"].shape[1] for case in cases)
    places = [case["positions_m"][:, :2].tolist() for case in cases]
    assert any(place in others[:i] for others in places for i, place in enumerate(others))
    assert any((case["beliefs_before"] != case["beliefs_after"]).any() for case in cases)
    assert all(path.stat().st_size < 100_000 for path in FOLDER.iterdir())


def nudge(array: np.ndarray, by: float) -> np.ndarray:
    """Change the entry that is farthest from 0.5, which a reading would be."""
    changed = array.copy()
    changed.flat[np.abs(array - 0.5).argmax()] += by
    return changed


@pytest.mark.parametrize("name", replay.TOLERANCES)
def test_a_perturbed_case_fails(name, tmp_path, capsys):
    case = load()
    original = case[name]
    if original.dtype.kind in "bi":
        case[name] = original.copy()
        case[name].flat[1] = not original.flat[1]
    elif name.startswith("utility"):
        case[name] = original * (1 + 3e-4)
    else:
        case[name] = nudge(original, 3e-4)
    record.write_case(tmp_path / "case_00.npz", case)
    assert replay.main([str(tmp_path)]) == 1
    results = table(capsys.readouterr().out)
    failed = {row.split(":")[0] for row, result in results.items() if result == "FAIL"}
    assert failed == {name}


def test_nan_fails(tmp_path, capsys):
    case = load()
    case["beliefs_after"] = nudge(case["beliefs_after"], np.nan)
    record.write_case(tmp_path / "case_00.npz", case)
    record.write_case(tmp_path / "case_01.npz", load())
    assert replay.main([str(tmp_path)]) == 1
    results = table(capsys.readouterr().out)
    assert [row for row, result in results.items() if result == "FAIL"] == ["beliefs_after"]


def test_a_missing_or_empty_folder_and_a_missing_gpu_are_refused(tmp_path, refused):
    (tmp_path / "other.npz").touch()
    assert "none" in refused(replay, tmp_path / "none")
    assert "case_*.npz" in refused(replay, tmp_path)
    assert "cuda:99" in refused(replay, FOLDER, "--device", "cuda:99")


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", CASE.read_bytes()[:-100], CASE.read_bytes()[:5000] + b"\0" * 9000],
    ids=["empty", "text", "cut", "overwritten"],
)
def test_a_broken_file_is_refused(content, tmp_path, refused):
    (tmp_path / "case_00.npz").write_bytes(content)
    assert "case_00.npz" in refused(replay, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("heard", None, "heard"),
        ("t", None, "array t"),
        ("truth", np.zeros((3, 3)), "(41, 41)"),
        ("critic_state", np.array("text"), "critic_state"),
        ("n_agents", np.array(2.5), "n_agents"),
        ("num_actions", np.array(5), "num_actions"),
        ("actions", np.array([0, 1, 27]), "actions"),
        ("positions_m", np.full((3, 3), 5.5), "positions_m"),
        ("positions_m", np.full((3, 3), np.nan), "positions_m"),
        ("config", np.array("{"), "config"),
        ("config", np.array("[]"), "config"),
        ("config", np.array('{"mapping": {"prior": 2}}'), "mapping.prior"),
        ("config", None, "(493, 493)"),  # the paper's map
    ],
)
def test_a_missing_or_wrong_array_is_refused(name, value, named, tmp_path, refused):
    case = load()
    del case[name]
    if value is not None:
        case[name] = value
    record.write_case(tmp_path / "case_00.npz", case)
    assert named in refused(replay, tmp_path)


def test_the_recorder_names_a_folder_it_cannot_make(tmp_path, refused):
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file" in refused(record, tmp_path / "file" / "below")
