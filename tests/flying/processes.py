"""Teams whose UAVs fly in processes of their own, for the tests."""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marl_framework.config.loading import dump_config
from marl_framework.config.model import Config
from marl_framework.flying.knowledge import Moment
from marl_framework.flying.options import main
from tests.flying.dry import SEED
from tests.flying.lossy_network import enter

PATIENCE = 300  # until a process is stuck [s]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["marl_framework.flying.solo", "marl_framework.flying.options"])


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a port of the loopback that nobody uses."""
    with socket.socket(type=kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(ready: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something happens."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def addresses(uav: int, port: int) -> list[str]:
    """Return the options of a radio: UAV 1 listens on `port`, and the others find it there."""
    if uav == 1:
        return ["--listen", f"tcp/127.0.0.1:{port}"]
    return ["--listen", "tcp/127.0.0.1:0", "--radio", f"tcp/127.0.0.1:{port}"]


def fly_apart(
    folder: Path,
    config: Config,
    words: Sequence[str],
    radio: Callable[[int, int], list[str]] = addresses,
    patience: float = PATIENCE,
    namespaces: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Fly each UAV of a team by the command, in its own process; return the results of each.

    The processes are in network namespaces, if these are given.
    """
    file, port, team = folder / "mission.yaml", free_port(), config.experiment.missions.n_agents
    dump_config(config, file)
    assert isinstance(team, int)
    flights = []
    for uav in range(1, team + 1):
        own = f"--seed {SEED} --uav {uav} --of {team} --separation 0 --run-name uav{uav}".split()
        own += ["--config", str(file), "--set", f"logging.directory={folder}"]
        place = namespaces[uav - 1] if namespaces else ""
        flights.append(
            _CONTEXT.Process(target=_run, args=[[*own, *radio(uav, port), *words], place])
        )
    for flight in flights:
        flight.start()
    for flight in flights:
        flight.join(patience)
        flight.kill()
        assert flight.exitcode == 0
    summaries = (folder / f"uav{uav}" / "summary.json" for uav in range(1, team + 1))
    return [json.loads(path.read_text())["results"] for path in summaries]


def moments_of(results: dict[str, Any]) -> list[Moment]:
    """Return the moments of a UAV that has dropped no message except repeated ones."""
    assert results["uav"]["dropped"].keys() <= {"double"}
    return [
        Moment(tuple(place), tuple(heard), belief, averages)
        for place, heard, belief, averages in results["moments"]
    ]


def _run(words: list[str], namespace: str) -> None:
    if namespace:
        enter(namespace)
    sys.exit(main(words))
