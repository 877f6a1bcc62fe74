"""Autopilots' own programs, with simulated sensors and physics."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pymavlink import mavutil
from pymavlink.dialects.v20 import common as mavlink

from marl_framework.config.geography import Place
from tests.flying.processes import free_port

AIRFRAME = "Tools/autotest/default_params/copter.parm"  # in the source tree of ArduCopter
STARTUP = "etc/init.d-posix/rcS"  # in the build folder of PX4
_PERIOD = 1e5  # of ArduCopter's true positions, in simulated time [µs]


class Program(threading.Thread, ABC):
    """Runs a program in `folder` until `stop`, and records its true positions.

    Args:
        words: command.
        folder: new folder of its files.
        place: location of the area.
        address: MAVLink address for a pilot.
        port: UDP port to which it sends its true positions.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self,
        words: Sequence[str | Path],
        folder: Path,
        place: Place,
        address: str,
        port: int,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(daemon=True)
        self._place, self._end, self.address = place, threading.Event(), address
        self._track: list[list[float]] = []
        self._link = mavutil.mavlink_connection(f"udpin:127.0.0.1:{port}", dialect="common")
        with (folder / "output.txt").open("w") as output:
            self._process = subprocess.Popen(
                words, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **environment},
            )  # fmt: skip
        self.start()

    @property
    def track(self) -> npt.NDArray[np.float64]:
        """Times [s, Unix] and true positions [m], [T, 4]."""
        return np.array(self._track)

    def run(self) -> None:
        heard = ["HEARTBEAT", "SIM_STATE", "HIL_STATE_QUATERNION"]
        while not self._end.is_set():
            message = self._link.recv_match(type=heard, blocking=True, timeout=1.0)
            if message is None:
                continue
            if message.get_type() != "HEARTBEAT":
                longitude, latitude, altitude = self._position(message)
                metres = self._place.metres(np.array([[longitude, latitude]]) / 1e7)[0].tolist()
                self._track.append([time.time(), *metres, altitude])
            elif not self._track:
                self._ask()

    @abstractmethod
    def _position(self, message: Any) -> tuple[int, int, float]:
        """Return longitude, latitude [1e-7 degrees], and the altitude above home [m]."""

    def _ask(self) -> None:
        """Ask for true positions."""

    def stop(self) -> None:
        """End the program."""
        self._end.set()
        self._process.terminate()
        self._process.wait()
        self.join()
        self._link.close()


class ArduCopter(Program):
    """ArduCopter with a fence; it knows its position within `error` [m].

    `program` is build/sitl/bin/arducopter in its source tree, `home` (latitude, longitude), and
    `speed` that of its clock; 1 is real time.
    """

    error = 0.5

    def __init__(
        self, program: Path, folder: Path, number: int, home: list[float], place: Place, speed: str
    ) -> None:
        folder.mkdir()
        (folder / "own.parm").write_text("FENCE_ENABLE 1\n")
        ports = [free_port(socket.SOCK_DGRAM) for _ in range(2)]
        words = [f"--serial{n}=udpclient:127.0.0.1:{port}" for n, port in enumerate(ports)]
        words += [f"--defaults={program.parents[3] / AIRFRAME},own.parm", "--serial2=none"]
        words += [f"--home={home[0]:.8f},{home[1]:.8f},0,0", f"--instance={number}", "--wipe"]
        words = [str(program), "--model=quad", f"--speedup={speed}", *words]
        super().__init__(words, folder, place, f"udpin://127.0.0.1:{ports[0]}", ports[1], {})

    def _position(self, message: Any) -> tuple[int, int, float]:
        return message.lon_int, message.lat_int, message.alt

    def _ask(self) -> None:
        asked = 511, 0, mavlink.MAVLINK_MSG_ID_SIM_STATE, _PERIOD, 0, 0, 0, 0, 0
        self._link.mav.command_long_send(1, 1, *asked)


class PX4(Program):
    """PX4 with a fence and the physics in its program (SIH).

    `program` is bin/px4 in its build folder; see `ArduCopter` for the others. The ports are those
    of PX4 for this instance.
    """

    error = 1.0  # its simulated motors shake the sensors more

    def __init__(
        self, program: Path, folder: Path, number: int, home: list[float], place: Place, speed: str
    ) -> None:
        folder.mkdir()
        build = program.parents[1]
        words = [program, "-d", "-i", str(number), "-s", build / STARTUP, build / "etc"]
        environment = {"PX4_SIM_MODEL": "sihsim_quadx", "PX4_SIM_SPEED_FACTOR": speed}
        places = dict(zip(("LAT", "LON", "ALT"), (*home, 0.0), strict=True))
        environment |= {f"PX4_HOME_{name}": f"{value:.8f}" for name, value in places.items()}
        environment |= {"PX4_PARAM_GF_ACTION": "3"}
        address = f"udpin://127.0.0.1:{14540 + number}"
        super().__init__(words, folder, place, address, 19410 + number, environment)

    def _position(self, message: Any) -> tuple[int, int, float]:
        return message.lon, message.lat, message.alt / 1e3
