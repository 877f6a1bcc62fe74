"""Fly a mission from a team exported with `--observations`: NumPy and ONNX Runtime suffice.

python examples/fly_onnx.py team.onnx
"""

import json
import sys

import numpy as np
import onnxruntime


def fly(team, world, truth, positions, rng):
    """Return each UAV's belief [N, R, C] and its last position [N, 3]."""
    beliefs = np.full((len(positions), *truth.shape), world["prior"], np.float32)
    for t in range(world["moves"] + 1):
        apart = np.linalg.norm((positions[:, None] - positions) * world["spacing"], axis=-1)
        heard = apart <= world["communication_range"]
        readings = np.zeros((len(positions), *world["window"]), np.int8)
        for i, (x, y, z) in enumerate(positions):
            (x0, x1, row), (y0, y1, col) = world["rows"][x][z], world["cols"][y][z]
            miss, alarm, prior = world["miss"][z], world["false_alarm"][z], world["prior"]
            below, luck = truth[x0:x1, y0:y1], rng.random((x1 - x0, y1 - y0))
            signs = np.where(np.where(below, luck >= miss, luck < alarm), 1, -1)
            readings[i, x0 - row : x1 - row, y0 - col : y1 - col] = signs
            p = beliefs[heard[:, i], x0:x1, y0:y1].clip(1e-4, 1 - 1e-4)  # all who hear UAV i
            odds = np.where(signs > 0, (1 - miss) / alarm, miss / (1 - alarm)) * (1 - prior) / prior
            beliefs[heard[:, i], x0:x1, y0:y1] = p * odds / (p * odds + 1 - p)
        if t < world["moves"]:
            seen = (positions, np.array(t), heard, beliefs, readings)
            inputs = {known.name: seen[k][None] for k, known in enumerate(team.get_inputs())}
            positions = positions + np.array(world["offsets"])[team.run(None, inputs)[0][0]]
    return beliefs, positions


if __name__ == "__main__":
    team = onnxruntime.InferenceSession(sys.argv[1])
    world = json.loads(team.get_modelmeta().custom_metadata_map["mission"])
    (x, y, z), rng = world["lattice"], np.random.default_rng(3)
    truth = np.indices(world["map"]).sum(0) < sum(world["map"]) / 2  # one side of a diagonal
    cells = rng.choice(x * y, world["agents"], replace=False)
    start = np.array([(cell // y, cell % y, z - 1) for cell in cells])
    belief, _ = fly(team, world, truth, start, rng)
    print(f"mean error of the beliefs: 0.5 at first, {abs(belief - truth).mean():.3f} at the end")
