"""Fly a mission with an exported team, using only NumPy and ONNX Runtime.

Export the team with `--observations`, then run `python examples/fly_onnx.py team.onnx`.
"""

import json
import sys

import numpy as np
import onnxruntime


def fly(team, mission, truth, starts, rng):
    """Fly from lattice positions [N, 3]; return each UAV's belief [N, R, C] and last position."""
    positions, beliefs = starts, np.full((len(starts), *truth.shape), mission["prior"], np.float32)
    for t in range(mission["moves"] + 1):
        distances = np.linalg.norm((positions[:, None] - positions) * mission["spacing"], axis=-1)
        heard = distances <= mission["communication_range"]
        readings = np.zeros((len(positions), *mission["window"]), np.int8)
        for i, (x, y, z) in enumerate(positions):
            (x0, x1, row), (y0, y1, col) = mission["rows"][x][z], mission["cols"][y][z]
            miss, alarm, prior = mission["miss"][z], mission["false_alarm"][z], mission["prior"]
            below, luck = truth[x0:x1, y0:y1], rng.random((x1 - x0, y1 - y0))
            signs = np.where(np.where(below, luck >= miss, luck < alarm), 1, -1)
            readings[i, x0 - row : x1 - row, y0 - col : y1 - col] = signs
            p = beliefs[heard[:, i], x0:x1, y0:y1].clip(1e-4, 1 - 1e-4)  # UAVs that hear UAV i
            odds = np.where(signs > 0, (1 - miss) / alarm, miss / (1 - alarm)) * (1 - prior) / prior
            beliefs[heard[:, i], x0:x1, y0:y1] = p * odds / (p * odds + 1 - p)
        if t < mission["moves"]:
            seen = (positions, np.array(t), heard, beliefs, readings, starts)
            inputs = {known.name: seen[k][None] for k, known in enumerate(team.get_inputs())}
            positions = positions + np.array(mission["offsets"])[team.run(None, inputs)[0][0]]
    return beliefs, positions


def load(file):
    """Return an exported team; exit with code 2 if the file is not one."""
    try:
        team = onnxruntime.InferenceSession(file)
    except Exception as error:  # ONNX Runtime raises many types
        stop(f"{file} cannot be read as ONNX: {error}")
    if "positions" not in [known.name for known in team.get_inputs()]:
        stop(f"{file} does not take positions; export the team with --observations")
    return team


def stop(text):
    """Print an error in one line and exit with code 2."""
    print("error:", *text.split(), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        stop("give one file: python examples/fly_onnx.py team.onnx")
    team = load(sys.argv[1])
    mission = json.loads(team.get_modelmeta().custom_metadata_map["mission"])
    (x, y, z), rng = mission["lattice"], np.random.default_rng(3)
    truth = np.indices(mission["map"]).sum(0) < sum(mission["map"]) / 2  # one side of a diagonal
    cells = rng.choice(x * y, mission["agents"], replace=False)
    start = np.array([(cell // y, cell % y, z - 1) for cell in cells])
    belief, _ = fly(team, mission, truth, start, rng)
    print(f"mean error of the beliefs: 0.5 at first, {abs(belief - truth).mean():.3f} at the end")
