"""The history's commands, on runs made by hand: nothing is lost, only what was named is deleted."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from marl_framework.config.loading import dump_config, load_config
from marl_framework.history import main
from marl_framework.runs import history
from marl_framework.runs.lock import RunLock


class House:
    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.runs = base / "runs"
        self.history = base / "training_history"
        self._capsys = capsys

    def run(self, name: str, *overrides: str, **status: object) -> Path:
        path = self.runs / name
        path.mkdir(parents=True)
        dump_config(load_config("params_test", overrides), path / "config.yaml")
        started = "2026-01-02T03:04:05+00:00"
        environment = {"started": started, "commit": "abc", "versions": {"x": 1}}
        (path / "environment.json").write_text(json.dumps(environment))
        (path / "uncommitted.diff").write_text("+ 1")
        (path / "status.json").write_text(json.dumps({"state": "training", **status}))
        return path

    def __call__(self, *arguments: str) -> list[str]:
        assert main(["--runs", str(self.runs), *arguments]) == 0
        return self._capsys.readouterr().out.splitlines()

    def error(self, *arguments: str) -> str:
        assert main(["--runs", str(self.runs), *arguments]) == 2
        out, err = self._capsys.readouterr()
        assert (out, err.count("\n"), err[:7]) == ("", 1, "error: ")
        return err

    def archived(self, name: str, times: int) -> list[str]:
        for number in range(times):
            self.run(name, training_step=number)
            self("archive", name)
        return sorted(os.listdir(self.history / name), key=history._stamp_key)


@pytest.fixture
def house(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> House:
    return House(tmp_path, capsys)


@pytest.fixture
def _one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """All happens within one second."""

    class Frozen(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr(history, "datetime", Frozen)


def test_what_moves_to_the_history_takes_its_metadata_along(house: House) -> None:
    best = {"validation_entropy": 0.25}
    house.run("t", training_step=7, last={"return": 1.5}, best=best)
    (line,) = house("archive", "t")
    (kept,) = (house.history / "t").iterdir()
    assert line == f"The earlier run 't' is now in {kept}"
    known = json.loads((kept / "metadata.json").read_text())
    assert known["state"] == "killed"
    assert (known["training_step"], known["last"], known["best"]) == (7, {"return": 1.5}, best)
    assert (known["commit"], known["versions"]) == ("abc", {"x": 1})
    assert known["configuration"] == "config.yaml"
    assert known["uncommitted_diff"] == "uncommitted.diff"
    assert known["started"] < known["ended"]
    assert os.listdir(house.runs) == []
    assert house("archive", "t") == []  # nothing there is no mistake


@pytest.mark.usefixtures("_one_moment")
def test_moves_in_one_second_never_overwrite_and_stay_in_order(house: House) -> None:
    stamps = house.archived("t", 11)
    assert stamps[0] == "20260102T030405Z"
    assert stamps[9:] == ["20260102T030405Z-10", "20260102T030405Z-11"]
    listed = [line.split(":")[0] for line in house("list", "t")]
    assert listed == [f"t/{stamp}" for stamp in stamps]
    steps = [
        json.loads((house.history / "t" / stamp / "status.json").read_text())["training_step"]
        for stamp in stamps
    ]
    assert steps == list(range(11))


def test_list_and_show_tell_how_runs_ended(house: House) -> None:
    house.runs.mkdir()
    assert house("list") == []
    (stamp,) = house.archived("t", 1)
    house.run("t", training_step=3, best={"validation_entropy": 0.5})
    house.run("u")
    lines = house("list")
    assert lines[0].startswith(f"t/{stamp}: killed, 0 training steps")
    assert lines[1].startswith("t: killed, 3 training steps, best validation entropy 0.5000")
    assert lines[2].startswith("u: killed, 0 training steps")
    assert len(lines) == 3
    assert house("list", "u") == lines[2:]
    assert f"folder: {house.runs / 't'}" in house("show", "t")
    assert f"folder: {house.history / 't' / stamp}" in house("show", f"t/{stamp}")
    assert "name: t" in house("show", f"t/{stamp}")


def test_a_name_that_looks_like_a_time_is_still_a_name(house: House) -> None:
    (stamp,) = house.archived("20250101T000000Z", 1)
    kept = house.history / "20250101T000000Z" / stamp / "metadata.json"
    assert json.loads(kept.read_text())["name"] == "20250101T000000Z"
    assert "name: 20250101T000000Z" in house("show", "20250101T000000Z")
    house.run("20250101T000000Z")
    assert "name: 20250101T000000Z" in house("show", "20250101T000000Z")


@pytest.mark.parametrize("odd", [[1], 5, "text", None, {"state": 3, "best": [1], "last": "x"}])
def test_odd_files_of_a_run_are_told_like_missing_ones(house: House, odd: object) -> None:
    run = house.run("t")
    for best in (odd, {"validation_entropy": "low"}):
        results = {"finished": True, "best": best, "last": odd}
        for name, content in {"environment": odd, "status": odd, "summary": results}.items():
            (run / f"{name}.json").write_text(json.dumps({"results": content, "process": odd}))
        (run / "environment.json").write_text(json.dumps(odd))
        (line,) = house("list")
        assert line.startswith("t: unknown, 0 training steps, began ")


def test_a_file_that_vanishes_meanwhile_is_not_missed(house, monkeypatch) -> None:
    run = house.run("a")
    monkeypatch.setattr(Path, "glob", lambda folder, _: iter([folder / "gone.tmp"]))
    assert history.describe_run(run)["ended"]


@pytest.mark.parametrize("state", ["finished", "training"])
def test_a_later_evaluation_is_not_the_end_of_a_run(house: House, state: str) -> None:
    run = house.run("t", state=state, updated="2026-01-02T04:00:00+00:00")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last.pt").write_text("weights")
    (run / "evaluation").mkdir()
    (run / "evaluation" / "results.json").write_text("{}")
    end = datetime.fromisoformat("2026-01-02T05:00:00+00:00").timestamp()
    for path in run.rglob("*"):
        late = 3600 * ("evaluation" in path.parts) - 60 * (path.name != "last.pt")
        os.utime(path, (end + late, end + late))
    os.utime(run, (end + 7200, end + 7200))
    expected = "04:00:00" if state == "finished" else "05:00:00"  # killed: its last file
    assert f"ended: 2026-01-02T{expected}+00:00" in house("show", "t")
    house("archive", "t")
    (kept,) = (house.history / "t").iterdir()
    known = json.loads((kept / "metadata.json").read_text())
    assert known["ended"] == f"2026-01-02T{expected}+00:00"


def test_a_run_that_is_being_trained_stays(house: House) -> None:
    (stamp,) = house.archived("t", 1)
    run = house.run("t")
    lock = RunLock(run)
    assert "run name t" in house.error("archive", "t")
    assert os.listdir(house.history / "t") == [stamp]
    assert not (run / "metadata.json").exists()
    assert house("list", "t")[-1].startswith("t: in training, ")
    lock.release()
    assert house("list", "t")[-1].startswith("t: killed, ")
    house("archive", "t")


@pytest.mark.parametrize("relative", [False, True])
def test_a_run_behind_a_link_is_a_run(house: House, tmp_path: Path, relative: bool) -> None:
    disk = house.run("t").rename(tmp_path / "disk")
    link = house.runs / "t"
    link.symlink_to(Path("..") / disk.relative_to(house.runs.parent) if relative else disk)
    lock = RunLock(link)
    assert "run name t" in house.error("archive", "t")
    lock.release()
    (moved,) = house("archive", "t")
    assert not link.exists()
    (stamp,) = os.listdir(house.history / "t")
    assert moved.endswith(stamp)
    assert (disk / "metadata.json").is_file()
    (line,) = house("list")
    assert line.startswith(f"t/{stamp}: killed")
    assert house("clean", "t", "--keep", "0") == []


def test_clean_deletes_the_oldest_of_one_name_and_nothing_else(house: House, tmp_path) -> None:
    stamps = house.archived("t", 4)
    others = house.archived("u", 2)
    (tmp_path / "elsewhere").mkdir()
    (house.history / "t" / "notes").mkdir()
    (house.history / "t" / "20200101T000000Z").symlink_to(tmp_path / "elsewhere")
    deleted = house("clean", "t", "--keep", "2")
    assert deleted == [f"deleted {house.history / 't' / stamp}" for stamp in stamps[:2]]
    left = {*stamps[2:], "notes", "20200101T000000Z"}
    assert set(os.listdir(house.history / "t")) == left
    assert sorted(os.listdir(house.history / "u"), key=history._stamp_key) == others
    assert (tmp_path / "elsewhere").exists()
    assert house("clean", "t", "--keep", "9") == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["show", "none"], "none"),
        (["show", "t/20200101T000000Z"], "t/20200101T000000Z"),
        (["archive", "../t"], "run name"),
        (["archive", "a b"], "run name"),
        (["clean", "..", "--keep", "0"], "run name"),
        (["clean", "t", "--keep", "-1"], "--keep -1"),
        (["list", "a/b"], "run name"),
        (["list", "none"], "none"),
        (["clean", "none", "--keep", "1"], "none"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(house, tmp_path, arguments, named) -> None:
    house.run("t")
    before = sorted(tmp_path.rglob("*"))
    assert named in house.error(*arguments)
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_may_be_the_folder_above(house, monkeypatch) -> None:
    monkeypatch.chdir(house.run("a"))
    house.run("b")
    assert main(["--runs", "..", "archive", "b"]) == 0
    assert [path.name for path in house.history.iterdir()] == ["b"]


def test_a_folder_of_runs_that_is_missing_is_refused(house, monkeypatch, capsys) -> None:
    (stamp,) = house.archived("t", 1)
    house.runs.rmdir()
    assert f"--runs {house.runs}" in house.error("list")
    monkeypatch.chdir(house.history.parent)  # the default may have only archived runs
    assert main(["list"]) == 0
    assert capsys.readouterr().out.startswith(f"t/{stamp}: ")


def test_between_file_systems_the_copy_appears_whole(house: House, monkeypatch) -> None:
    rename = os.rename

    def across(source, target):
        if Path(source).parent == house.runs:
            raise OSError(18, "Invalid cross-device link")
        assert (Path(source) / "config.yaml").exists()
        rename(source, target)

    monkeypatch.setattr(history.os, "rename", across)
    house.run("t")
    house("archive", "t")
    (kept,) = (house.history / "t").iterdir()
    assert (kept / "metadata.json").exists()
    assert os.listdir(house.runs) == []


def test_a_copy_that_does_not_fit_is_removed_and_the_run_stays(house: House, monkeypatch) -> None:
    def across(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    def full(source: Path, copy: Path, **_: object) -> None:
        (copy / "checkpoints").mkdir(parents=True)
        raise shutil.Error([(str(source), str(copy), "[Errno 28] No space left on device")])

    run = house.run("t")
    monkeypatch.setattr(history, "write_json", lambda *_: None)  # renames too
    monkeypatch.setattr(history.os, "rename", across)
    monkeypatch.setattr(history.shutil, "copytree", full)
    assert "No space left on device" in house.error("archive", "t")
    assert os.listdir(house.history / "t") == []
    assert (run / "config.yaml").exists()
