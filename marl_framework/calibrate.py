"""Measure the error rates of a camera over known ground: `python -m marl_framework.calibrate`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from marl_framework.command_line import (
    Parser,
    add_overrides,
    as_program,
    check_out,
    loaded,
    writing,
)
from marl_framework.config.errors import ConfigError
from marl_framework.runs.files import atomic_file
from marl_framework.training.guard import guarded


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m marl_framework.calibrate", description=__doc__)
    add = parser.add_argument
    text = "folder of images and their JSON files, as for fly --camera folder:FOLDER"
    add("--frames", required=True, metavar="FOLDER", help=text)
    text = "known map: PNG, TIFF, GeoTIFF, NPY or NPZ file (sensor.simulation.raster.path)"
    add("--truth", required=True, metavar="FILE", help=text)
    text = "limit above which the known map is of interest (sensor.simulation.raster.threshold)"
    add("--threshold", type=float, metavar="VALUE", help=text)
    text = "band of the known map, or array of an NPZ file (sensor.simulation.raster.key)"
    add("--band", metavar="KEY", help=text)
    text = "pixel size of the known map [m], if its file has none (sensor.simulation.raster)"
    add("--resolution", type=float, metavar="M", help=text)
    text = "params file with field of view, altitudes and flying.camera "
    add("--config", metavar="FILE", help=text + "(default: $CONFIG_FILE_PATH or params.yaml)")
    add_overrides(parser)
    add("--out", metavar="FILE", help="params file to write (default: print it)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 done, 1 failed, 2 bad input or 130 interrupted."""
    options = _make_parser().parse_args(arguments)
    return guarded(lambda _: _run(options), again="then run the command again")


def _run(options: argparse.Namespace) -> int:
    from marl_framework.config.loading import load_config, resolve_config_path, with_changes
    from marl_framework.config.yaml_text import format_yaml

    frames = Path(options.frames)
    if not frames.is_dir():
        raise ConfigError(f"--frames {frames}: is not a folder; give the folder of the frames")
    name = options.config or os.environ.get("CONFIG_FILE_PATH") or "params.yaml"
    out = None if options.out is None else Path(options.out)
    if out is not None:
        check_out(out, resolve_config_path(name), Path(options.truth))
    given = {"path": options.truth, "key": options.band, "resolution": options.resolution}
    given["threshold"] = options.threshold
    raster = {key: value for key, value in given.items() if value is not None}
    config = load_config(name, options.overrides)
    config = with_changes(config, {"sensor": {"simulation": {"raster": raster}}}, "options")

    # Imported here, because they load PyTorch: help and bad input are reported at once.
    from marl_framework.flying.calibration import calibrate, report

    loaded()
    found = calibrate(config, frames)
    print(report(found))
    text = format_yaml({"sensor": {"model": {"type": "table", "table": found.table()}}})
    if out is None:
        print(text, end="")
        return 0
    with writing(out), atomic_file(out) as file:
        file.write(text.encode())
    return 0


command = partial(as_program, main)
if __name__ == "__main__":
    sys.exit(command())
