"""ArduCopter in simulation: its own program, with simulated sensors and physics."""

from __future__ import annotations

import os

os.environ["MAVLINK20"] = "1"

import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pymavlink import mavutil
from pymavlink.dialects.v20 import common as mavlink

from marl_framework.mission.terrains.geotiff import Place
from tests.flying.processes import free_port

Array = npt.NDArray[np.float64]
PARAMETERS = Path("Tools/autotest/default_params/copter.parm")
"""Parameters of its simulated airframe, in the source tree where it was built."""
OWN = "FENCE_ENABLE 1\n"
_RATE = 10.0  # of true positions, in simulated time [Hz]


class Copter(threading.Thread):
    """Runs one ArduCopter, and records where it truly is, until `stop`.

    Args:
        program: `build/sitl/bin/arducopter` in its source tree.
        folder: folder for its files.
        number: number of the UAV, from 1.
        home: (latitude, longitude) of its pad [degrees].
        place: location of the area.
        speed: speed of its clock; 1 is real time.
    """

    def __init__(
        self, program: Path, folder: Path, number: int, home: list[float], place: Place, speed: str
    ) -> None:
        super().__init__(daemon=True)
        folder.mkdir()
        self._own, self._place, self._end = folder / "own.parm", place, threading.Event()
        self._own.write_text(OWN)
        ports = [free_port(socket.SOCK_DGRAM) for _ in range(2)]
        self.address = f"udpin://127.0.0.1:{ports[0]}"
        self._track: list[tuple[float, ...]] = []
        self._link = mavutil.mavlink_connection(f"udpin:127.0.0.1:{ports[1]}", dialect="common")
        defaults = f"{program.resolve().parents[3] / PARAMETERS},{self._own}"
        links = [f"--serial{n}=udpclient:127.0.0.1:{port}" for n, port in enumerate(ports)]
        words = ["--model=quad", "--wipe", f"--speedup={speed}", f"--defaults={defaults}", *links]
        words += [f"--home={home[0]:.8f},{home[1]:.8f},0,0", f"--instance={number}", "--serial2=none"]
        with (folder / "output.txt").open("w") as output:
            self._process = subprocess.Popen(
                [program.resolve(), *words], cwd=folder, stdout=output, stderr=output
            )

    @property
    def track(self) -> Array:
        """Times [s, Unix] and true positions [m], [T, 4]."""
        return np.array(self._track)

    def run(self) -> None:
        interval, number = 1e6 / _RATE, mavlink.MAVLINK_MSG_ID_SIM_STATE
        while not self._end.is_set():
            message = self._link.recv_match(blocking=True, timeout=1.0)
            kind = message and message.get_type()
            if kind == "HEARTBEAT" and not self._track:
                self._link.mav.command_long_send(
                    1, 1, mavlink.MAV_CMD_SET_MESSAGE_INTERVAL, 0, number, interval, 0, 0, 0, 0, 0
                )
            elif kind == "SIM_STATE":
                degrees = np.array([[message.lon_int, message.lat_int]]) / 1e7
                metres = self._place.metres(degrees)[0].tolist()
                self._track.append((time.time(), *metres, message.alt))

    def stop(self) -> None:
        """End the program."""
        self._end.set()
        self._process.terminate()
        self._process.wait()
        self.join()
        self._link.close()
