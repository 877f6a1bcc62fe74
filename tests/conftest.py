"""What every test shares: one thread, one seed, no caller's environment, and the devices."""

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # commands that tests start inherit it
os.environ["MAVLINK20"] = "1"  # pymavlink reads it once
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.pop("CONFIG_FILE_PATH", None)

import matplotlib.image
import numpy as np
import pytest
import torch
from hypothesis import settings

from marl_framework import device as device_module
from marl_framework.deployment import flights
from marl_framework.evaluation import comparison
from marl_framework.evaluation.flight import FlightRecord
from marl_framework.training import outputs
from marl_framework.training.signals import SIGNALS

torch.set_num_threads(1)
gc.disable()  # until all tests are collected: nothing of them goes

# The same examples in every run, and no verdict by the clock of a slow machine.
settings.register_profile("steady", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("steady")

DEVICES = [
    "cpu",
    *([pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else []),
]


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make; libraries and tests stay to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


LONGEST = {
    *("test_mavsdk_vehicle", "test_triton", "test_two_ranks", "test_export", "test_notebook"),
    *("test_resume", "test_evaluate", "test_series", "test_suite", "test_pages"),
}
"""Files that take longest; what begins last should be short."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is no GPU; nothing else is."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A program ignores signals at its end; what later tests start would inherit that."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and the GPU where there is one."""
    return torch.device(request.param)


@pytest.fixture(autouse=True, scope="session")
def _named_devices() -> Iterator[None]:
    """Fail tests that leave their device to the machine, unless they ask for `automatic`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "automatic_device", leave_no_device)
        yield


_AUTOMATIC = device_module.automatic_device


def leave_no_device() -> torch.device:
    """Stand in for the choice of a device."""
    pytest.fail("compute.device is auto here: say --device cpu or compute.device=cpu", False)


@pytest.fixture
def automatic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `auto` choose, as it does outside of tests."""
    monkeypatch.setattr(device_module, "automatic_device", _AUTOMATIC)


DRAWINGS = [(outputs, "mission_figure")]
DRAWINGS += [
    (module, name)
    for module in (comparison, flights)
    for name in ("mission_figure", "film_strip", "mission_gif")
]


@pytest.fixture(autouse=True, scope="session")
def _one_pixel() -> Iterator[None]:
    """Draw figures of missions with one pixel, unless a test asks for `drawn`."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in DRAWINGS:
            patch.setattr(module, name, one_pixel)
        yield


_REAL = [getattr(module, name) for module, name in DRAWINGS]


def one_pixel(record: FlightRecord, index: int, path: Path) -> None:
    """Stand in for the figure of a mission."""
    matplotlib.image.imsave(path, np.zeros((1, 1, 3)))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let missions be drawn, as they are outside of tests."""
    for (module, name), real in zip(DRAWINGS, _REAL, strict=True):
        monkeypatch.setattr(module, name, real)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call a command that must end with bad input, or another code, and one line; return that."""

    def run(command: Callable[..., int], *arguments: object, code: int = 2, **more: object) -> str:
        capsys.readouterr()
        try:
            found: object = command(*arguments, **more)
        except SystemExit as stop:  # of the parser
            found = stop.code
        assert found == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        return line

    return run


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Global generators and threads start every test alike, whatever ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    if torch.are_deterministic_algorithms_enabled():  # the call imports the compiler
        torch.use_deterministic_algorithms(False)
