"""ArduCopter's own program, with simulated sensors and physics."""

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

from marl_framework.config.geography import Place
from tests.flying.processes import free_port

AIRFRAME = "Tools/autotest/default_params/copter.parm"  # in its source tree
_PERIOD = 1e5  # of true positions, in simulated time [µs]
_HEARD = ["HEARTBEAT", "SIM_STATE"]


class Copter(threading.Thread):
    """Runs an ArduCopter with a fence at `address` until `stop`, and records its true positions.

    `program` is build/sitl/bin/arducopter in its source tree, `home` (latitude, longitude), and
    `speed` that of its clock; 1 is real time.
    """

    def __init__(
        self, program: Path, folder: Path, number: int, home: list[float], place: Place, speed: str
    ) -> None:
        super().__init__(daemon=True)
        folder.mkdir()
        self._place, self._end = place, threading.Event()
        ports = [free_port(socket.SOCK_DGRAM) for _ in range(2)]
        self.address, self._track = f"udpin://127.0.0.1:{ports[0]}", [[0.0] * 4][:0]
        self._link = mavutil.mavlink_connection(f"udpin:127.0.0.1:{ports[1]}", dialect="common")
        (folder / "own.parm").write_text("FENCE_ENABLE 1\n")
        words = [f"--serial{n}=udpclient:127.0.0.1:{port}" for n, port in enumerate(ports)]
        words += [f"--defaults={program.parents[3] / AIRFRAME},own.parm", "--serial2=none"]
        words += [f"--home={home[0]:.8f},{home[1]:.8f},0,0", f"--instance={number}", "--wipe"]
        with (folder / "output.txt").open("w") as output:
            self._process = subprocess.Popen(
                [program, "--model=quad", f"--speedup={speed}", *words],
                cwd=folder, stdout=output, stderr=output,
            )  # fmt: skip
        self.start()

    @property
    def track(self) -> npt.NDArray[np.float64]:
        """Times [s, Unix] and true positions [m], [T, 4]."""
        return np.array(self._track)

    def run(self) -> None:
        asked = 511, 0, mavlink.MAVLINK_MSG_ID_SIM_STATE, _PERIOD, 0, 0, 0, 0, 0
        while not self._end.is_set():
            message = self._link.recv_match(type=_HEARD, blocking=True, timeout=1.0)
            if message is not None and message.get_type() == "SIM_STATE":
                degrees = np.array([[message.lon_int, message.lat_int]]) / 1e7
                metres = self._place.metres(degrees)[0].tolist()
                self._track.append([time.time(), *metres, message.alt])
            elif message is not None and not self._track:
                self._link.mav.command_long_send(1, 1, *asked)

    def stop(self) -> None:
        """End the program."""
        self._end.set()
        self._process.terminate()
        self._process.wait()
        self.join()
        self._link.close()
