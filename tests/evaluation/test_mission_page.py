"""The page to watch a mission on: what it holds, and how it behaves in a browser."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
import torch

from marl_framework import evaluate
from marl_framework.config.loading import load_config
from marl_framework.evaluation import mission_page
from marl_framework.evaluation.comparison import prepare
from marl_framework.evaluation.flight import FlightRecord
from marl_framework.evaluation.mission_page import MissionPage
from marl_framework.main import main
from tests.evaluation.browser import BROWSER, opened
from tests.mission.zones import feature, write_zones, zone_config
from tests.small import small_config

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
ODD = "<b>&\"'</script>"


@pytest.fixture(scope="module")
def records() -> dict[str, FlightRecord]:
    """A mission of two policies, one with a name that is no HTML; its maps are not square."""
    config = small_config(dims=(30.0, 20.0), agents=3)
    flown = prepare(config, torch.device("cpu"), ["coverage", "random"], 2, 1).fly()
    return {"coverage": flown["coverage"], ODD: flown["random"]}


@pytest.fixture
def page(tmp_path: Path, records: dict[str, FlightRecord]) -> Path:
    MissionPage(records).write(tmp_path / "mission.html")
    return tmp_path / "mission.html"


def data(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json" id="mission">(.*?)</script>', text)
    parsed: dict[str, Any] = json.loads(found)
    return parsed


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)


def test_a_page_holds_the_mission(page: Path, records: dict[str, FlightRecord]) -> None:
    found = data(page)
    for policy, (name, record) in zip(found["policies"], records.items(), strict=True):
        assert policy["name"] == name
        shape = record.film.shape[1:]
        belief = unpacked(policy["belief"]).reshape(shape).cumsum(0, dtype=np.uint8) / 100
        np.testing.assert_allclose(belief, record.film[0], atol=0.006)
        np.testing.assert_array_equal(unpacked(found["truth"]).reshape(shape[1:]), record.truth[0])
        path = torch.tensor(policy["path"])
        torch.testing.assert_close(path, record.path[0].transpose(0, 1))
        for metric in ("f1", "ece", "brier"):
            np.testing.assert_allclose(policy[metric], record.metrics[metric][0], atol=1e-4)
        np.testing.assert_allclose(policy["entropy"], record.metrics["roi_entropy"][0], atol=1e-4)
        assert record.completed is not None
        completed = unpacked(policy["completed"]["map"]).reshape(shape[1:]) / 100
        np.testing.assert_allclose(completed, record.completed[0], atol=0.006)
        for metric, key in (("f1", "f1"), ("roi_entropy", "entropy"), ("ece", "ece")):
            expected = record.metrics[f"completed_{metric}"][0].item()
            assert policy["completed"][key] == pytest.approx(expected)
        seen = np.array(policy["footprints"])  # x0, x1, y0, y1
        assert seen.shape == (3, record.config.missions.episode_length + 1, 4)
        x = path[..., 0].numpy()
        assert (seen[..., :2].min(-1) <= x + 1e-6).all()
        assert (x <= seen[..., :2].max(-1) + 3).all()
    assert found["size"] == [30, 20]
    assert np.multiply(found["shape"], found["cell"]).tolist() == pytest.approx(
        np.multiply(record.config.geometry.map_shape, record.config.geometry.cell_size).tolist()
    )


def test_who_ends_early_stays_as_it_was(records: dict[str, FlightRecord], tmp_path: Path) -> None:
    whole = records["coverage"]
    active = whole.active.clone()
    active[0, 2:, 1] = False  # one UAV stops after 2 readings
    stopped = replace(whole, active=active)
    active = active.clone()
    active[0, 4:] = False  # and all do after 4
    given = {"whole": whole, "stopped": stopped, "short": replace(whole, active=active)}
    MissionPage(given).write(tmp_path / "mission.html")
    long, one, short = data(tmp_path / "mission.html")["policies"]
    MissionPage(dict(reversed(given.items()))).write(str(tmp_path / "turned.html"))
    assert "in 5 moves" in (tmp_path / "turned.html").read_text(encoding="utf-8")
    assert long["readings"] == [6, 6, 6]
    assert one["readings"] == [6, 2, 6]
    assert short["readings"] == [4, 2, 4]
    for name in ("f1", "entropy", "ece", "brier"):
        assert short[name] == long[name][:5] + [long[name][4]] * 2
    assert [len(track) for track in short["path"]] == [6, 6, 6]
    assert short["path"][0][3:] == [long["path"][0][3]] * 3
    beliefs = (unpacked(each["belief"]).reshape(7, -1) for each in (short, long))
    held, grown = (each.cumsum(0, dtype=np.uint8) for each in beliefs)
    np.testing.assert_array_equal(held[:5], grown[:5])
    assert (held[5:] == held[4]).all()


@pytest.fixture
def heard_late(tmp_path: Path, records: dict[str, FlightRecord]) -> Path:
    """The page of UAV 3, which never hears UAV 1, and UAV 2 only after its second reading."""
    active = records["coverage"].active.clone()
    active[0, :, 0] = active[0, :2, 1] = False
    footprints = records["coverage"].footprints * active.unsqueeze(-1)
    record = replace(records["coverage"], active=active, footprints=footprints)
    MissionPage({"UAV 3": record}).write(tmp_path / "heard.html")
    return tmp_path / "heard.html"


def test_uavs_heard_later_keep_their_numbers(
    heard_late: Path, records: dict[str, FlightRecord]
) -> None:
    found = data(heard_late)
    (policy,) = found["policies"]
    assert policy["numbers"] == [2, 3]
    assert len(found["uavs"]) == 3
    path = torch.tensor(policy["path"])
    torch.testing.assert_close(path, records["coverage"].path[0, :, 1:].transpose(0, 1))


def test_a_page_needs_no_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"src=|href=|url\(|@import|fetch\(", text)
    assert links == []
    assert "default-src 'none'" in text
    assert {a for a in re.findall(r"https?://[\w./]+", text)} <= {"http://www.w3.org/2000/svg"}


def test_names_are_no_html(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert ODD not in text
    assert text.count("</script>") == 2


@pytest.mark.soak
def test_a_full_map_of_four_policies_fits(tmp_path: Path) -> None:
    names = ["information_gain", "coverage", "random", "oracle"]
    config = load_config("params.yaml")
    flown = prepare(config, torch.device("cpu"), names[1:3], 1, 1).fly()
    record = flown["random"]  # it has the most different values
    path = tmp_path / "mission.html"
    MissionPage(dict.fromkeys(names, record)).write(path)
    assert len(unpacked(data(path)["truth"])) == 493 * 493
    assert path.stat().st_size < 5e6


def test_a_notebook_shows_the_page_in_a_frame(page: Path, records: dict[str, FlightRecord]) -> None:
    class Frame(HTMLParser):
        inside: str | None = None

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag == "iframe"
            self.inside = dict(attrs)["srcdoc"]

    frame = Frame()
    frame.feed(MissionPage(records)._repr_html_())
    assert frame.inside == page.read_text(encoding="utf-8")


def test_maps_are_averaged_where_a_page_would_be_too_large(
    page: Path, records: dict[str, FlightRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = data(page)
    monkeypatch.setattr(mission_page, "LARGEST", page.stat().st_size - 1)
    MissionPage(records).write(page)
    found = data(page)
    monkeypatch.setattr(mission_page, "LARGEST", 1)  # out of reach
    MissionPage(records).write(page)
    assert max(data(page)["shape"]) == 1
    assert found["shape"] == [-(-n // 2) for n in whole["shape"]]
    assert np.multiply(found["shape"], found["cell"]).tolist() == pytest.approx(
        np.multiply(whole["shape"], whole["cell"]).tolist()
    )


# In a browser ----------------------------------------------------------------------------

NOTE = """
const say = (name, value) => document.body.setAttribute(`data-${name}`, value);
const slider = document.getElementById("slider");
const canvases = [...document.querySelectorAll("canvas")];
const image = (c) => c.getContext("2d").getImageData(0, 0, c.width, c.height);
const pixels = (k) => canvases[k].toDataURL();
const move = (k) => { slider.value = k; slider.dispatchEvent(new Event("input")); };
const typed = (key) => new KeyboardEvent("keydown", { key, bubbles: true });
const press = (key) => document.body.dispatchEvent(typed(key));
"""


def said(dom: str) -> dict[str, str]:
    (body,) = re.findall(r"<body([^>]*)>", dom)
    return dict(re.findall(r'data-(\w+)="([^"]*)"', body))


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_slider_moves_beliefs_paths_and_values(page: Path, scheme: str) -> None:
    script = """
    const seen = () => [1, 2].map(pixels).concat(document.querySelector("#maps").innerHTML);
    const terrain = pixels(0);
    move(1); const one = seen(); say("one", document.getElementById("status").textContent);
    move(4); const four = seen(); say("four", document.getElementById("status").textContent);
    move(1); const again = seen();
    say("moved", four.every((now, k) => now !== one[k]));
    say("back", again.every((now, k) => now === one[k]));
    say("still", terrain === pixels(0));
    """
    dom, console = opened(page, NOTE + script, scheme)
    assert console == []
    found = said(dom)
    assert (found["moved"], found["back"], found["still"]) == ("true", "true", "true")
    first = data(page)["policies"][0]
    for name, reading in (("one", 1), ("four", 4)):
        assert found[name].startswith(f"reading {reading} of 6. coverage: entropy ")
        assert f"{first['entropy'][reading]:.3f} bit, F1 {first['f1'][reading]:.3f}" in found[name]


@needs_browser
def test_markers_have_the_numbers_and_colours_of_their_uavs(heard_late: Path) -> None:
    dom, console = opened(heard_late, NOTE + "move(1);")
    assert console == []
    assert re.findall(r"<title>UAV (\d+, no|\d+)", dom) == ["2, no", "3"]
    assert re.findall(r'class="marker".*?>(\d+)</text>', dom) == ["2", "3"]
    rings = re.findall(r'<circle[^>]* r="4.5"[^>]* stroke="(#\w+)"', dom)
    assert rings == data(heard_late)["uavs"][1:]
    last, _ = opened(heard_late, NOTE + "move(6);")
    assert re.findall(r"<title>UAV (\d+, no|\d+)", last) == ["2", "3"]


@needs_browser
def test_a_belief_is_drawn_with_y_up(page: Path, records: dict[str, FlightRecord]) -> None:
    script = """
    move(6);
    const { data, width, height } = image(canvases[1]);
    const row = (k) => Array.from({ length: width }, (_, j) => data[4 * (k * width + j)]);
    say("red", Array.from({ length: height }, (_, k) => row(k).join(" ")).join(","));
    """
    dom, _ = opened(page, NOTE + script)
    red = np.array([row.split() for row in said(dom)["red"].split(",")], int)
    belief = np.rot90(records["coverage"].film[0, 6].float().numpy())
    assert red.shape == belief.shape
    # The colours run from blue to yellow: red rises with the belief.
    assert (red[belief > 0.9] > 200).all()
    assert (red[belief < 0.1] < 60).all()
    assert {True, False} == set((belief > 0.9).flatten().tolist())


@needs_browser
def test_keys_and_the_button_play(page: Path) -> None:
    script = """
    const play = document.getElementById("play");
    move(2); slider.dispatchEvent(new Event("change")); say("address", location.hash);
    press("ArrowRight"); say("right", slider.value);
    press("ArrowLeft"); press("ArrowLeft"); say("left", slider.value);
    play.click(); say("playing", play.textContent.trim()); await seconds(2.2);
    say("later", slider.value); play.click(); say("stopped", play.textContent.trim());
    await seconds(2); say("waiting", slider.value);
    press(" "); await seconds(6); say("end", slider.value); say("done", play.textContent.trim());
    location.hash = "3"; await seconds(1); say("linked", slider.value);
    """
    dom, console = opened(page, NOTE + script)
    assert console == []
    found = said(dom)
    assert (found["address"], found["right"], found["left"]) == ("#2", "3", "1")
    assert (found["playing"], found["stopped"], found["done"]) == ("❚❚ Pause", "▶ Play", "▶ Play")
    assert (found["later"], found["waiting"], found["end"], found["linked"]) == ("4", "4", "6", "3")


@needs_browser
def test_a_screen_reader_finds_names_for_everything(page: Path) -> None:
    dom, _ = opened(page, NOTE + "move(2);")
    assert 'aria-valuetext="reading 2 of 6"' in dom
    for image in re.findall(r"<svg[^>]*viewBox[^>]*>", dom):
        assert re.search(r'role="img" aria-label="[^"]+"', image)
    rows = re.findall(r'<th scope="row">(\d+)</th>((?:<td>[\d.]+</td>)+)', dom)
    assert [int(number) for number, _ in rows] == list(range(7))
    assert {cells.count("<td>") for _, cells in rows} == {8}


@needs_browser
def test_the_true_border_is_shown_if_asked_for(page: Path) -> None:
    script = """
    const drawn = () => document.querySelectorAll("path.border[d*=M]").length;
    say("before", drawn()); document.getElementById("border").click(); say("after", drawn());
    """
    found = said(opened(page, NOTE + script)[0])
    assert (found["before"], found["after"]) == ("0", "2")


@needs_browser
def test_completed_maps_are_shown_if_asked_for(
    page: Path, records: dict[str, FlightRecord], tmp_path: Path
) -> None:
    script = """
    const status = () => document.getElementById("status").textContent;
    move(6); const last = pixels(1);
    move(2); const early = pixels(1);
    const box = document.getElementById("completed"); say("hidden", box.parentElement.hidden);
    box.click(); say("at", slider.value); say("changed", pixels(1) !== last); say("text", status());
    move(2); say("early", pixels(1) === early);
    move(6); box.click(); say("back", pixels(1) === last);
    """
    dom, console = opened(page, NOTE + script)
    assert console == []
    found = said(dom)
    assert (found["hidden"], found["at"]) == ("false", "6")
    assert (found["changed"], found["early"], found["back"]) == ("true", "true", "true")
    f1 = records["coverage"].metrics["completed_f1"][0].item()
    assert re.search(rf"coverage: completed map: entropy [\d.]+ bit, F1 {f1:.3f}", found["text"])
    without = {name: replace(record, completed=None) for name, record in records.items()}
    MissionPage(without).write(tmp_path / "without.html")
    assert said(opened(tmp_path / "without.html", NOTE + script)[0])["hidden"] == "true"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (main, ("--config=params_test.yaml", "--check")),
        (evaluate.main, ("--suite=standard", "--out=none")),
    ],
    ids=["training", "suite"],
)
def test_some_commands_have_no_page(
    command: Callable[..., int], options: tuple[str, ...], refused: Callable[..., str]
) -> None:
    assert "--html" in refused(command, [*options, "--html"])


def test_evaluate_writes_a_page_of_all_policies(tmp_path: Path) -> None:
    out = tmp_path / "out"
    flown = [
        "--config=params_test.yaml",
        "--policies=random,coverage",
        "--missions=2",
        "--device=cpu",
    ]
    assert evaluate.main([*flown, "--no-figures", "--html", f"--out={out}"]) == 0
    policies = data(out / "mission.html")["policies"]
    assert [policy["name"] for policy in policies] == ["random", "coverage"]


@needs_browser
def test_a_page_without_the_truth_shows_beliefs_only(
    tmp_path: Path, records: dict[str, FlightRecord]
) -> None:
    page = tmp_path / "mission.html"
    MissionPage(records, shows_truth=False).write(page)
    assert data(page)["truth"] is None
    dom, messages = opened(page)
    assert messages == []
    assert dom.count("<canvas") == len(records)
    assert "ROI entropy" not in re.sub("<script.*?</script>", "", dom, flags=re.DOTALL)
    assert len(re.findall('of-truth"[^>]* hidden', dom)) == 3  # border, curves and values


@needs_browser
def test_zones_and_obstacles_are_drawn_and_named(tmp_path: Path) -> None:
    ring = shapely.box(9, 9, 40, 21).difference(shapely.box(12, 12, 18, 18))
    config = zone_config(
        write_zones(tmp_path / "z.json", feature(ring, height=8)), 4, dims=(30.0, 20.0)
    )
    flown = prepare(config, torch.device("cpu"), ["coverage", "random"], 1, 1).fly()
    page = tmp_path / "mission.html"
    MissionPage(flown).write(page)
    zones = data(page)["zones"]
    assert [len(zone["rings"]) for zone in zones] == [2, *[1] * (len(zones) - 1)]
    assert len(zones) > 1  # the polygon and a box
    assert zones[0]["label"] == "closed from 0 m to 8 m"
    dom, messages = opened(page)
    assert messages == []
    assert dom.count('class="zones" role="img" aria-label="no-fly zone or obstacle"') == 3
    assert dom.count("<title>closed from 0 m") == 3 * len(zones)
    assert "no-fly zone or obstacle" in dom
