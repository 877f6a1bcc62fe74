"""Named maps: downloaded once from a local server, verified, converted, and flown."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from shapely import Point

from marl_framework import data, evaluate
from marl_framework.config.errors import ConfigError
from marl_framework.config.field import read_field
from marl_framework.config.loading import load_config, resolve_config_path
from marl_framework.config.mission import RasterConfig
from marl_framework.config.named_maps import FIELD_KEY, FOLDER, MAP_KEY, MAPS, NamedMap, locate
from marl_framework.evaluation.worlds import BASE, chosen_worlds
from marl_framework.mission.files import file_checksum, files_read
from marl_framework.mission.terrains.raster_file import read_raster

pooch = pytest.importorskip("pooch")
rdata = pytest.importorskip("rdata")
VALUES = np.random.default_rng(1).normal(size=(300, 200)).cumsum(0).cumsum(1).astype(np.float32)
TABLE = {
    "x": [100.0, 101.2, 101.2, 0.0],
    "y": [50.0, 50.0, 52.4, 0.0],
    "surf_temp": [21.5, 22.0, 24.5, 99.0],
    "year": [2022.0] * 4,
    "doy": [216.0, 216.0, 216.0, 218.0],
    "mod_start": [475.0] * 4,
}


class Served:
    """A folder on a local server; counts requests."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        served = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                served.requests.append(self.path)

        folder.mkdir()
        self.folder = folder
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        serve = partial(self.server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()

    def add(self, name: str) -> NamedMap:
        """Return the map of a file in the folder."""
        checksum = hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
        address = f"http://127.0.0.1:{self.server.server_port}/{name}"
        return NamedMap("hills", "1 m", 1.5, "none", address, checksum)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server with the map `data:toy`, and an empty cache in `tmp_path`."""
    found = Served(tmp_path / "served")
    np.save(found.folder / "toy.npy", VALUES)
    monkeypatch.setitem(MAPS, "toy", found.add("toy.npy"))
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    yield found
    found.stop()


def cached(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_map_is_downloaded_once_and_has_its_own_pixel_size(served, tmp_path) -> None:
    first = read_raster(RasterConfig(path="data:toy"))
    np.testing.assert_array_equal(first.values, VALUES)
    assert first.resolution == 1.5
    assert read_raster(RasterConfig(path="data:toy", resolution=3)).resolution == 3
    assert len(served.requests) == 1
    served.stop()
    assert tmp_path / "cache" in locate("data:toy").parents


def test_evaluate_flies_a_named_map_as_it_flies_its_file(served, tmp_path) -> None:
    values = []
    for terrain in ("data:toy", f"raster:{served.folder / 'toy.npy'}"):
        out = tmp_path / str(len(values))
        arguments = ["--config", "params_test.yaml", "--policies", "random", "--missions", "3"]
        arguments += ["--device", "cpu", "--no-figures", "--terrain", terrain, "--out", str(out)]
        if values:  # the file has no size of a pixel
            arguments += ["--set", "sensor.simulation.raster.resolution=1.5"]
        assert evaluate.main(arguments) == 0
        values.append(json.loads((out / "results.json").read_text())["policies"])
    assert values[0] == values[1]


def test_a_suite_flies_a_named_map(served) -> None:
    (world,) = chosen_worlds("standard", "hills=data:toy", "hills")
    assert world.map_file == locate("data:toy")
    raster = load_config(BASE, world.overrides).sensor.simulation.raster
    assert read_raster(raster).resolution == 1.5
    path = world.definition()["mission"]["sensor"]["simulation"]["raster"]["path"]
    assert path == f"toy.npy sha256 {MAPS['toy'].sha256}"


def test_a_file_with_another_checksum_is_refused_and_removed(served, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(MAPS, "toy", replace(MAPS["toy"], sha256="0" * 64))
    with pytest.raises(ConfigError, match=r"raster\.path: data:toy cannot be downloaded") as found:
        locate("data:toy")
    assert "hash" in str(found.value)
    assert "\n" not in str(found.value)
    assert cached(tmp_path) == []


def test_an_unreachable_server_is_one_line(served, tmp_path, capsys) -> None:
    served.stop()
    arguments = ["--config", "params_test.yaml", "--policies", "random", "--terrain", "data:toy"]
    arguments += ["--device", "cpu"]
    assert evaluate.main([*arguments, "--out", str(tmp_path / "out")]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error")]
    assert "data:toy cannot be downloaded" in line
    assert cached(tmp_path) == []


@pytest.mark.parametrize("package", ["pooch", "rdata"])
def test_the_missing_extra_is_named(served, monkeypatch, package: str) -> None:
    monkeypatch.setitem(MAPS, "toy", replace(MAPS["toy"], flight=(2022, 216, 475)))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs {package}; pip install '.*\[data\]'"):
        locate("data:toy")
    assert served.requests == []


def test_a_flight_of_a_table_of_r_becomes_a_map(served, tmp_path, monkeypatch) -> None:
    import pandas as pd

    rdata.write_rda(served.folder / "flights.rda", {"flights": pd.DataFrame(TABLE)})
    flight = replace(served.add("flights.rda"), resolution=1.2, flight=(2022, 216, 475))
    monkeypatch.setitem(MAPS, "flight", flight)
    found = read_raster(RasterConfig(path="data:flight"))
    nan = np.nan
    np.testing.assert_array_equal(found.values, [[21.5, nan, nan], [22.0, nan, 24.5]])
    assert found.resolution == 1.2
    served.stop()
    monkeypatch.setattr(rdata, "read_rda", None)  # reading takes a minute: once is enough
    assert locate("data:flight").name == "flight.npz"


def test_a_value_of_a_map_may_mean_not_measured(served, monkeypatch) -> None:
    outside = float(VALUES[7, 5])
    monkeypatch.setitem(MAPS, "toy", replace(MAPS["toy"], unmeasured=outside))
    values = read_raster(RasterConfig(path="data:toy")).values
    np.testing.assert_array_equal(values, np.where(outside == VALUES, np.nan, VALUES))


def test_a_flight_that_the_table_lacks_is_an_error(served, tmp_path, monkeypatch) -> None:
    import pandas as pd

    rdata.write_rda(served.folder / "flights.rda", {"flights": pd.DataFrame(TABLE)})
    monkeypatch.setitem(MAPS, "flight", replace(served.add("flights.rda"), flight=(2022, 1, 475)))
    with pytest.raises(ConfigError, match="no flight"):
        locate("data:flight")
    assert not [name for name in cached(tmp_path) if name.endswith(".npz")]


@pytest.mark.parametrize("between", [" ", ","])
def test_a_grid_of_text_becomes_a_field(served, tmp_path, monkeypatch, between: str) -> None:
    rows = ["0110", "0010", "1110"]  # from north to south
    text = "\n".join(between.join(f"{float(pixel)}" for pixel in row) for row in rows)
    (served.folder / "lake.csv").write_text(text)
    monkeypatch.setitem(MAPS, "lake", replace(served.add("lake.csv"), is_field=True))
    field = read_field("data:lake")
    inside = [
        [field.shape.contains(Point(1.5 * x + 0.7, 1.5 * y + 0.7)) for x in range(3)]
        for y in reversed(range(3))
    ]
    assert inside == [[False, True, True], [False, False, True], [True, True, True]]
    assert field.shape.area == pytest.approx(6 * 1.5**2)
    assert field.origin is None
    served.stop()
    assert locate("data:lake", FIELD_KEY).name == "lake.geojson"


def test_missions_fly_a_named_field(served, monkeypatch) -> None:
    (served.folder / "lake.csv").write_text("\n".join(["1 1 1 1 1 1"] * 4))
    lake = replace(served.add("lake.csv"), is_field=True, resolution=5.0)
    monkeypatch.setitem(MAPS, "lake", lake)
    config = load_config(resolve_config_path("params_test.yaml"), ["environment.field=data:lake"])
    assert (config.environment.x_dim, config.environment.y_dim) == (30, 20)
    assert files_read(config) == {
        "environment.field: data:lake": file_checksum(locate("data:lake", FIELD_KEY))
    }


@pytest.mark.parametrize(
    ("name", "key"), [("elevation", FIELD_KEY), ("lake_alamillo", MAP_KEY)], ids=["map", "field"]
)
def test_maps_and_fields_have_their_own_keys(name: str, key: str) -> None:
    right = MAP_KEY if key == FIELD_KEY else FIELD_KEY
    with pytest.raises(ConfigError, match=f"^{key}: data:{name} is a .*; set {right} to it$"):
        locate(f"data:{name}", key)


def test_a_name_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match="data:lost does not exist"):
        read_raster(RasterConfig(path="data:lost"))


def test_matplotlibs_map_needs_no_download(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    found = read_raster(RasterConfig(path="data:elevation"))
    assert found.values.shape == (344, 403)
    assert found.resolution == 1.2


def test_the_list_has_every_map_with_its_origin(capsys) -> None:
    assert data.main(["list"]) == 0
    out = capsys.readouterr().out
    for name, found in MAPS.items():
        assert f"data:{name}: " in out
        assert found.source in out
        assert found.licence in out
        assert found.sha256 is None or (found.sha256 in out and len(found.sha256) == 64)
