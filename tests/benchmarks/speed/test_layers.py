"""Layers of the networks alone."""

from __future__ import annotations

import pytest
import torch

from benchmarks.speed import layers
from marl_framework.config.loading import load_config
from tests.benchmarks.running import FLOAT32, positive, read_strict, run

pytestmark = pytest.mark.usefixtures("quick")
CONVOLUTION = ["convolution", "channels_last", "product"]


def test_every_layer_has_rows_of_all_its_ways(tmp_path, capsys, config):
    rows = (found := run(layers, tmp_path))["rows"]
    sizes, learning = config.network_sizes, config.learning
    assert found["settings"]["batch"] == learning.batch_size
    ways = {}
    for row in rows:
        ways.setdefault((row["network"], row["layer"]), []).append(row["way"])
        assert positive(row[f"{name}_seconds"] for name in ("forward", "backward"))
    assert len(ways) == 2 * 5
    for (network, layer), each in ways.items():
        padded = layer == "body.0" and sizes.channels(network) % 8 != 0
        expected = [*CONVOLUTION, *padded * ["channels_last, padded"]]
        assert each == (expected if layer in ("body.0", "body.2", "body.4") else ["linear"])
    first = sizes.actor_channels * 8 * 5**2 * 7**2  # kernels of 5 × 5 on maps of 11 × 11
    flops = 2 * learning.batch_size * first
    assert rows[0]["forward_flops"] == rows[0]["backward_flops"] == flops
    second = next(row for row in rows if row["layer"] == "body.2")
    assert second["backward_flops"] == 2 * second["forward_flops"]
    sums = found["seconds_of_convolutions"]
    assert list(sums) == CONVOLUTION
    assert sums["product"] == pytest.approx(
        sum(
            r[f"{p}_seconds"]
            for r in rows
            for p in ("forward", "backward")
            if r["way"] == "product"
        )
    )
    assert "body.4" in capsys.readouterr().out


def test_layers_measured_so_far_are_kept(tmp_path, monkeypatch):
    times = iter([(1.0, 2.0)])
    monkeypatch.setattr(layers, "time_passes", lambda *_: next(times))
    with pytest.raises(StopIteration):
        run(layers, tmp_path)
    (row,) = read_strict(tmp_path / "found.json")["rows"]
    assert (row["forward_seconds"], row["backward_seconds"]) == (1.0, 2.0)


def test_inputs_have_the_precision_of_training():
    found = layers.layers_of(load_config("params_test.yaml", [FLOAT32]), torch.bfloat16)
    heads = [layer for layer in found if layer.name == "head"]
    assert {layer.dtype for layer in heads} == {torch.float32}
    assert {layer.dtype for layer in found if layer not in heads} == {torch.bfloat16}
    assert [layer.is_first for layer in found] == [True, *[False] * 4] * 2
