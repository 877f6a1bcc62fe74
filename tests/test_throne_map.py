"""The example that makes maps of the thermal flights: the library reads them as they were."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from examples import throne_map
from marl_framework.config.mission import RasterConfig
from marl_framework.mission.terrains.raster_file import read_raster

FLIGHT = ("--year", "2022", "--doy", "216", "--start", "475")


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rdata reads: three tiles of one flight and one of another."""
    table = {
        "x": [100.0, 101.2, 101.2, 0.0],
        "y": [50.0, 50.0, 52.4, 0.0],
        "surf_temp": [21.5, 22.0, 24.5, 99.0],
        "year": [2022] * 4,
        "doy": [216, 216, 216, 218],
        "mod_start": [475] * 4,
    }
    rdata = SimpleNamespace(read_rda=lambda file: {"c_flights_data": table})
    monkeypatch.setitem(sys.modules, "rdata", rdata)


def test_a_flight_becomes_a_map_that_the_library_reads(tmp_path: Path) -> None:
    throne_map.main(["flights.RData", *FLIGHT, "--out", str(tmp_path / "map.npz")])
    raster = read_raster(RasterConfig(path=str(tmp_path / "map.npz")))
    nan = np.nan
    np.testing.assert_array_equal(raster.values, [[21.5, nan, nan], [22.0, nan, 24.5]])
    assert raster.resolution == 1.2


def test_a_flight_that_is_not_there_is_named(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        throne_map.main(["f.RData", *FLIGHT, "--doy", "1", "--out", str(tmp_path / "map.npz")])
    assert ended.value.code == 2
    assert "f.RData has no flight of year, doy, mod_start (2022, 1, 475)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
