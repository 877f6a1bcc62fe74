"""Named maps: ground and fields that come with a package or are downloaded on first use.

`data:NAME` works wherever the file of a map, or of a field, does. Downloads are verified against
their SHA-256 checksum and kept in the cache folder of the user, or in the folder
`MARL_FRAMEWORK_DATA`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from importlib import import_module
from itertools import groupby
from pathlib import Path

from marl_framework.config.errors import ConfigError

DATA, SAMPLE = "data:", "matplotlib:"
"""Prefixes of named maps, and of sample data of matplotlib."""
FOLDER = "MARL_FRAMEWORK_DATA"
"""Environment variable with the folder of downloads."""
MAP_KEY, FIELD_KEY = "sensor.simulation.raster.path", "environment.field"
"""Keys of maps and of fields."""


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
    unmeasured: float | None = None
    """Value of pixels that were not measured, if not NaN."""
    is_field: bool = False
    """Whether it is a field: rows from north to south of pixels that are 1 in the field, else 0."""


def _github(repository: str, commit: str, path: str) -> str:
    """Return the address of a file."""
    return f"https://raw.githubusercontent.com/{repository}/{commit}/{path}"


def _srtm(tile: str, place: str, sha256: str) -> NamedMap:
    repository, commit = "Weizhe-Chen/attentive_kernels", "1ccb7255e1a09d215af39da3bb1efe6305cf4dea"
    return NamedMap(
        meaning=f"SRTM elevation, grey values 0 to 255, {place}",
        pixel="10 arc seconds, about 309 m to the north; flown as 1.2 m",
        resolution=1.2,
        licence=f"MIT (repository {repository})",
        source=_github(repository, commit, f"data/srtm/preprocessed/{tile}.npy"),
        sha256=sha256,
    )


def _sarenv(number: int, place: str, sha256: str) -> NamedMap:
    repository, commit = "namurproject/SAREnv", "9316c970782a9aa58c7853a4cef8e9085bd57adc"
    return NamedMap(
        meaning=f"probability of a lost person's location, SAREnv's scenario {number}, {place}",
        pixel="30 m; flown as 1.2 m",
        resolution=1.2,
        licence=f"MIT (repository {repository}); doi 10.3390/drones9090628",
        source=_github(repository, commit, f"sarenv_dataset/{number}/heatmap.npy"),
        sha256=sha256,
        unmeasured=0.0,  # outside the scenario's circle
    )


def _throne(year: int, day: int, minute: int) -> NamedMap:
    repository, commit = "ggcostoya/throne", "cbd0f95c6877d2a1bdbd603a7fff3544d9ed51af"
    when = date(year, 1, 1) + timedelta(days=day - 1)
    return NamedMap(
        meaning=f"surface temperature of scrubland [°C], {when} {minute // 60}:{minute % 60:02}",
        pixel="1.2 m",
        resolution=1.2,
        licence=f"MIT (repository {repository}); doi 10.1111/2041-210X.70096",
        source=_github(repository, commit, "case_study_data/c_flights_data.RData"),
        sha256="2573fe5a67fa236392c94933da26f495854e90a9f8f690a909278aece9040e6b",
        flight=(year, day, minute),
    )


def _lake(file: str, place: str, sha256: str) -> NamedMap:
    repository = "AMendB/MultiAgentInformativePath"
    commit = "915d75bbdda09fb1bd212adb74fd467853219863"
    return NamedMap(
        meaning=f"field: {place}, from the code of GuadalPlanner's first author",
        pixel="not stated; flown as 2.5 m",
        resolution=2.5,
        licence=f"none stated (repository {repository})",
        source=_github(repository, commit, f"Environment/Maps/{file}"),
        sha256=sha256,
        is_field=True,
    )


MAPS = {
    "elevation": NamedMap(
        meaning="elevation around the Jacksboro fault, Tennessee",
        pixel="3 arc seconds, about 93 m to the north and 74 m to the east; flown as 1.2 m",
        resolution=1.2,
        licence="matplotlib's, based on that of Python",
        source=f"{SAMPLE}jacksboro_fault_dem.npz",
    ),
    "lake_alamillo": _lake(
        "Alamillo30x49mask.csv",
        "lake in the park El Alamillo, Seville",
        "9e8d8c7920a53e0b832cfe012581a724f32b4a8332717c1aea343bd4eee9bd54",
    ),
    "lake_ypacarai": _lake(
        "ypacarai_map_low_res.csv",
        "Lake Ypacaraí, Paraguay",
        "a0c3e9aa8be421670074770b09eb0aed92cb68f2b7bbbc0eaa0582ab746c17c1",
    ),
    "sarenv_7": _sarenv(
        7,
        "forests in Poland",
        "ab140be35e0ea0d6af1921a261c23c0d47bee0b2efc0269fb57b7f2b1529698e",
    ),
    "sarenv_8": _sarenv(
        8,
        "roads in the Netherlands",
        "7f5e50ced07e038fe2d76d2905ec88d948bc76c7a472a3aacc1fbf38fefb3874",
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


def find_map(name: str, key: str = MAP_KEY) -> NamedMap | None:
    """Return the map of a name `data:NAME` at a configuration's `key`; None for other files.

    Raises ConfigError if there is no map of that name, or it belongs at another key.
    """
    if not name.startswith(DATA):
        return None
    found = MAPS.get(name.removeprefix(DATA))
    if found is None:
        names = "python -m marl_framework.data list prints the names"
        raise ConfigError(f"{key}: {name} does not exist; {names}")
    if found.is_field != (key == FIELD_KEY):
        kind, right = ("field", FIELD_KEY) if found.is_field else ("map", MAP_KEY)
        raise ConfigError(f"{key}: {name} is a {kind}; set {right} to it")
    return found


def locate(name: str, key: str = MAP_KEY) -> Path:
    """Return the file of a name at a configuration's `key`; download a named map on first use.

    Names are paths, `data:NAME` or `matplotlib:NAME`. Raises ConfigError if a named map does not
    exist, the extra `data` is missing, or the file cannot be downloaded or has another checksum.
    """
    named = find_map(name, key)
    source = name if named is None else named.source
    if source.startswith(SAMPLE):
        from matplotlib.cbook import get_sample_data  # slow to import, rarely needed

        return Path(str(get_sample_data(source.removeprefix(SAMPLE), asfileobj=False)))
    if named is None:
        return Path(os.path.expanduser(name))  # unlike Path.expanduser, never raises
    return _download(name, named, key)


def _download(name: str, named: NamedMap, key: str) -> Path:
    """Return the file of a named map from the cache, where it is downloaded and converted once."""
    try:
        import pooch

        if named.flight is not None:
            import_module("rdata")  # reads the table below
    except ImportError as error:
        text = f"{key}: {name} needs {error.name}; pip install 'marl_framework[data]'"
        raise ConfigError(text) from error
    folder = Path(os.environ.get(FOLDER) or pooch.os_cache("marl_framework"))
    folder /= str(named.sha256)[:8]
    try:
        remote = named.source.rpartition("/")[2]
        file = Path(pooch.retrieve(named.source, f"sha256:{named.sha256}", remote, folder))
        stem = file.with_name(name.removeprefix(DATA))
        if named.flight is not None:
            return _converted(file, named, stem.with_suffix(".npz"), _write_flight)
        if named.is_field:
            return _converted(file, named, stem.with_suffix(".geojson"), _write_field)
        return file
    except (OSError, ValueError) as error:  # ValueError: another checksum
        raise ConfigError(f"{key}: {name} cannot be downloaded to {folder}: {error}") from error


def _converted(
    file: Path, named: NamedMap, out: Path, write: Callable[[Path, NamedMap, Path], None]
) -> Path:
    """Return `out`, which is written first if it does not exist."""
    if not out.exists():
        part = out.with_name(f".{os.getpid()}{out.suffix}")  # so that `out` is always complete
        try:
            write(file, named, part)
            os.replace(part, out)
        finally:
            with suppress(OSError):
                part.unlink()
    return out


def _write_flight(file: Path, named: NamedMap, out: Path) -> None:
    """Write the map of a flight in a table of R to an NPZ file; reading a table takes a minute.

    Tiles of the map are NaN where nothing was measured.
    """
    import numpy as np
    import rdata

    table = next(iter(rdata.read_rda(file).values()))
    columns = ("x", "y", "surf_temp", "year", "doy", "mod_start")
    x, y, temperature, *flight = (np.asarray(table[name], float) for name in columns)
    pairs = zip(flight, named.flight or (), strict=True)
    rows = np.all([column == value for column, value in pairs], axis=0)
    if not rows.any():
        raise ValueError(f"no flight {named.flight} in {file.name}")
    metres = np.stack((x[rows], y[rows]))
    tiles = np.rint((metres - metres.min(1, keepdims=True)) / named.resolution).astype(int)
    values = np.full(tiles.max(1) + 1, np.nan, np.float32)
    values[tuple(tiles)] = temperature[rows]
    np.savez(out, temperature=values, resolution_m=named.resolution)


def _write_field(file: Path, named: NamedMap, out: Path) -> None:
    """Write a grid of text, pixels separated by commas or spaces, to a GeoJSON file in metres."""
    rows = [line.replace(",", " ").split() for line in file.read_text().splitlines()]
    features = []
    for y, row in enumerate(reversed(rows)):
        x = 0
        for inside, pixels in groupby(row, key=lambda pixel: float(pixel) > 0):
            first, x = x, x + len(list(pixels))
            corners = (first, y), (x, y), (x, y + 1), (first, y + 1), (first, y)
            ring = [[named.resolution * i, named.resolution * j] for i, j in corners]
            geometry = {"type": "Polygon", "coordinates": [ring]}
            if inside:
                features.append({"type": "Feature", "properties": {}, "geometry": geometry})
    tree = {"type": "FeatureCollection", "coordinates": "metres", "features": features}
    out.write_text(json.dumps(tree))
