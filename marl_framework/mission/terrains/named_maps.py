"""Named maps: measured ground that comes with a package or is downloaded on first use.

`data:NAME` works wherever a map file does. Downloads are verified against their SHA-256 checksum
and kept in the cache folder of the user, or in the folder `MARL_FRAMEWORK_DATA`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import atomic_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DATA, SAMPLE = "data:", "matplotlib:"
"""Prefixes of named maps, and of sample data of matplotlib."""
FOLDER = "MARL_FRAMEWORK_DATA"
"""Environment variable with the folder of downloads."""
_KEY = "sensor.simulation.raster.path"


@dataclass(frozen=True)
class NamedMap:
    """A map with its origin."""

    meaning: str
    """Quantity and place, in a few words."""
    pixel: str
    """Size of a pixel on the ground."""
    resolution: float
    """Metres per pixel in missions; below the true size for a scaled-down model."""
    licence: str
    source: str
    """Address of the file, or `matplotlib:NAME`."""
    sha256: str | None = None
    """Checksum of a download; None for a file of a package."""
    flight: tuple[int, int, int] | None = None
    """Year, day of the year and first minute of the day of a flight in a table of R."""


def _srtm(tile: str, place: str, sha256: str) -> NamedMap:
    commit = "1ccb7255e1a09d215af39da3bb1efe6305cf4dea"
    return NamedMap(
        meaning=f"SRTM elevation, grey values 0 to 255, {place}",
        pixel="10 arc seconds, about 309 m to the north; flown as 1.2 m",
        resolution=1.2,
        licence="MIT (repository Weizhe-Chen/attentive_kernels)",
        source=f"https://raw.githubusercontent.com/Weizhe-Chen/attentive_kernels/{commit}/"
        f"data/srtm/preprocessed/{tile}.npy",
        sha256=sha256,
    )


def _throne(year: int, day: int, minute: int) -> NamedMap:
    commit = "cbd0f95c6877d2a1bdbd603a7fff3544d9ed51af"
    when = date(year, 1, 1) + timedelta(days=day - 1)
    return NamedMap(
        meaning=f"surface temperature of scrubland [°C], {when} {minute // 60}:{minute % 60:02}",
        pixel="1.2 m",
        resolution=1.2,
        licence="MIT (repository ggcostoya/throne); doi 10.1111/2041-210X.70096",
        source=f"https://raw.githubusercontent.com/ggcostoya/throne/{commit}/"
        "case_study_data/c_flights_data.RData",
        sha256="2573fe5a67fa236392c94933da26f495854e90a9f8f690a909278aece9040e6b",
        flight=(year, day, minute),
    )


MAPS = {
    "elevation": NamedMap(
        meaning="elevation around the Jacksboro fault, Tennessee",
        pixel="3 arc seconds, about 93 m to the north and 74 m to the east; flown as 1.2 m",
        resolution=1.2,
        licence="matplotlib's, based on that of Python",
        source=f"{SAMPLE}jacksboro_fault_dem.npz",
    ),
    "srtm_n17e073": _srtm(
        "N17E073",
        "western India",
        "a83da6ecf20d48346cbff8dc031c396b155e6b41cc81cb1d50bc142ac72756b4",
    ),
    "srtm_n43w080": _srtm(
        "N43W080",
        "Lake Ontario",
        "94c1161c8a5cca7b72d22ab50f7fdd94bf332d5a8022c8370addff32e1603b9d",
    ),
    "srtm_n45w123": _srtm(
        "N45W123",
        "Oregon",
        "214bd67ffe43f40c41c5e273259bce2b3f5e2e9c0dd257f8d42a6477b26dc009",
    ),
    "srtm_n47w124": _srtm(
        "N47W124",
        "Washington State",
        "81f19ee4ecddaae1e86e229aefc420cc4dc04853d1bd9f4e58962509eac567e5",
    ),
    "throne_0755": _throne(2022, 216, 475),
    "throne_1121": _throne(2022, 216, 681),
    "throne_held_out": _throne(2022, 218, 965),
}
"""Maps by name."""


def find_map(path: str) -> NamedMap | None:
    """Return the map of a path `data:NAME`, None for other paths.

    Raises ConfigError if there is no map of that name.
    """
    if not path.startswith(DATA):
        return None
    found = MAPS.get(path.removeprefix(DATA))
    if found is None:
        names = "python -m marl_framework.data list prints the names"
        raise ConfigError(f"{_KEY}: {path} does not exist; {names}")
    return found


def fetch(path: str) -> Path:
    """Return the file of a path `data:NAME` or `matplotlib:NAME`; download it on first use.

    Raises ConfigError if the name does not exist, the extra `data` is missing, or the file cannot
    be downloaded or has another checksum.
    """
    named = find_map(path)
    source = path if named is None else named.source
    if named is None or named.sha256 is None:
        from matplotlib.cbook import get_sample_data  # slow to import, rarely needed

        return Path(str(get_sample_data(source.removeprefix(SAMPLE), asfileobj=False)))
    try:
        import pooch

        if named.flight is not None:
            import_module("rdata")  # reads the table below
    except ImportError as error:
        text = f"{_KEY}: {path} needs {error.name}; pip install 'marl_framework[data]'"
        raise ConfigError(text) from error
    folder = Path(os.environ.get(FOLDER) or pooch.os_cache("marl_framework")) / named.sha256[:8]
    try:
        name = source.rpartition("/")[2]
        file = Path(pooch.retrieve(source, f"sha256:{named.sha256}", name, folder))
        converted = file.with_name(f"{path.removeprefix(DATA)}.npz")
        if named.flight is not None and not converted.exists():
            _convert(file, named.flight, named.resolution, converted)
        return file if named.flight is None else converted
    except (OSError, ValueError) as error:  # ValueError: another checksum
        reason = " ".join(str(error).split())
        raise ConfigError(f"{_KEY}: {path} cannot be downloaded to {folder}: {reason}") from error


def _convert(file: Path, start: tuple[int, int, int], tile: float, out: Path) -> None:
    """Write the map of a flight in a table of R to an NPZ file; reading a table takes a minute."""
    import numpy as np
    import rdata

    table = next(iter(rdata.read_rda(file).values()))
    columns = ("x", "y", "surf_temp", "year", "doy", "mod_start")
    x, y, temperature, *flight = (np.asarray(table[name], float) for name in columns)
    pairs = zip(flight, start, strict=True)
    rows = np.all([column == value for column, value in pairs], axis=0)
    if not rows.any():
        raise ValueError(f"no flight {start} in {file.name}")
    values = _grid(x[rows], y[rows], temperature[rows], tile)
    with atomic_file(out) as stream:
        np.savez(stream, temperature=values, resolution_m=tile)


def _grid(
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    values: npt.NDArray[np.float64],
    tile: float,
) -> npt.NDArray[np.float32]:
    """Return the values of tiles at x, y [m] as a map, x first; NaN where nothing was measured."""
    import numpy as np

    place = np.stack([np.rint((axis - axis.min()) / tile).astype(int) for axis in (x, y)])
    grid = np.full(place.max(1) + 1, np.nan, np.float32)
    grid[tuple(place)] = values
    return grid
