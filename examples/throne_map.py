"""Makes a map from a flight of the throne data set, for `sensor.simulation.raster.path`.

pip install rdata
python examples/throne_map.py c_flights_data.RData --year 2022 --doy 216 --start 475 --out 0755.npz
"""

import argparse

import numpy as np


def grid(x, y, values, tile):
    """Return values of tiles at x, y [m] as an array, x first; NaN where nothing was measured."""
    place = np.stack([np.rint((axis - axis.min()) / tile).astype(int) for axis in (x, y)])
    found = np.full(place.max(1) + 1, np.nan, np.float32)
    found[tuple(place)] = values
    return found


def main(arguments=None):
    """Read the chosen flight and write its map."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", help="c_flights_data.RData or flights_data.rda of the data set")
    parser.add_argument("--year", type=int, required=True)
    parser.add_argument("--doy", type=int, required=True, help="day of the year")
    parser.add_argument("--start", type=int, required=True, help="minute of the day, mod_start")
    parser.add_argument("--tile", type=float, default=1.2, help="side of a tile [m] (1.2)")
    parser.add_argument("--out", required=True, help="the map, an .npz")
    options = parser.parse_args(arguments)
    import rdata

    table = next(iter(rdata.read_rda(options.file).values()))
    names = ("x", "y", "surf_temp", "year", "doy", "mod_start")
    x, y, temperature, *flight = (np.asarray(table[name], float) for name in names)
    wanted = (options.year, options.doy, options.start)
    rows = np.all([column == value for column, value in zip(flight, wanted, strict=True)], axis=0)
    if not rows.any():
        parser.error(f"{options.file} has no flight of year, doy, mod_start {wanted}")
    temperature = grid(x[rows], y[rows], temperature[rows], options.tile)
    np.savez(options.out, temperature=temperature, resolution_m=options.tile)
    print(f"{options.out}: {temperature.shape[0]} x {temperature.shape[1]} tiles")


if __name__ == "__main__":
    main()
