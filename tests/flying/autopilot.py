"""A multicopter's autopilot, as far as pilots need it: the MAVLink side of PX4 or ArduPilot."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from pymavlink import mavutil
from pymavlink.dialects.v20 import common as mavlink

from marl_framework.config.geography import Place

Kind = Literal["px4", "ardupilot"]
MODES: dict[str, dict[str, tuple[int, int]]] = {  # (mode, sub mode)
    "px4": {"MANUAL": (1, 0), "POSITION": (3, 0), "TAKEOFF": (4, 2), "HOLD": (4, 3), "RTL": (4, 5)},
    "ardupilot": {"STABILIZE": (0, 0), "GUIDED": (4, 0), "LOITER": (5, 0), "RTL": (6, 0)},
}
KNOWN = {  # parameters
    "px4": (
        "RTL_RETURN_ALT RTL_CONE_ANG NAV_ACC_RAD NAV_MC_ALT_RAD MPC_XY_CRUISE MPC_TKO_SPEED "
        "MPC_Z_V_AUTO_UP MPC_Z_V_AUTO_DN MPC_ACC_HOR MPC_ACC_UP_MAX MPC_ACC_DOWN_MAX MPC_JERK_AUTO "
        "MIS_TAKEOFF_ALT"
    ),
    "ardupilot": (
        "RTL_ALT_M WP_RADIUS_M WP_SPD WP_SPD_UP WP_SPD_DN WP_ACC WP_ACC_Z WP_JERK RTL_ALT "
        "WPNAV_RADIUS WPNAV_SPEED WPNAV_SPEED_UP WPNAV_SPEED_DN WPNAV_ACCEL WPNAV_ACCEL_Z "
        "WPNAV_JERK WP_YAW_BEHAVIOR RTL_CONE_SLOPE"
    ),
}
INTEGERS = {"RTL_CONE_ANG"}
GOOD = mavlink.MAV_SYS_STATUS_SENSOR_GPS | mavlink.MAV_SYS_STATUS_PREARM_CHECK
SEA = 321.5  # altitude of home above the sea [m]
SPEED = 30.0  # [m/s]
ATTITUDE = (0.02, -0.03, 1.2)  # roll, pitch and yaw [rad]
TICK = 0.02  # [s]


class Autopilot(threading.Thread):
    """Flies from `home` [m] of a place, and sends its telemetry to a UDP port until `stop`.

    Attributes:
        at: position [m], [3].
        mode: name of the flight mode.
        speed, pace: velocity, [3], and its largest value [m/s].
        track: positions so far.
        params, fence: what was uploaded.
        commands: names of the accepted commands.
        refusals: number of commands to refuse, by name.
        batteries: charge of each battery [%], -1 if unknown; if empty, one with 80 %.
        arming: whether it has received a command to arm.
        arms: event; while it is not set, the command to arm is not executed.
    """

    def __init__(
        self,
        port: int,
        kind: Kind,
        place: Place,
        home: tuple[float, float],
        health: int = GOOD,
        fence_result: int = 0,
        lacks: Collection[str] = (),
    ) -> None:
        super().__init__(daemon=True)
        self.kind, self.place, self.health = kind, place, health
        self._fence_result = fence_result
        self.at, self.home = np.array([*home, 0.0]), np.array([*home, 0.0])
        self.goals: list[Any] = []
        self.speed, self.pace, self.track = np.zeros(3), SPEED, [self.at]
        self.armed, self.mode = False, next(iter(MODES[kind]))
        self.params = dict.fromkeys((n for n in KNOWN[kind].split() if n not in lacks), 1.0)
        self.batteries: dict[int, int] = {}
        self.arms = threading.Event()
        self.arms.set()
        self.arming = False
        self.fence: list[Any] = []
        self.commands: list[str] = []
        self.refusals: dict[str, int] = {}
        self._link = mavutil.mavlink_connection(
            f"udpout:127.0.0.1:{port}", source_system=1, source_component=1, dialect="common"
        )
        self._end, self._tick, self._takeoff = threading.Event(), 0, 0.0

    def stop(self) -> None:
        """Fall silent."""
        self._end.set()
        self.arms.set()
        self.join()
        self._link.close()

    def run(self) -> None:
        while not self._end.wait(TICK):
            while (message := self._link.recv_msg()) is not None:
                handler = getattr(self, f"_on_{message.get_type().lower()}", None)
                if handler is not None:
                    handler(message)
            self._fly()
            self.track.append(self.at)
            self._report()

    def _fly(self) -> None:
        self.speed = np.zeros(3)
        if not self.goals or not self.armed:
            return
        way = self.goals[0] - self.at
        length = float(np.linalg.norm(way))
        step = min(length, self.pace * TICK)
        if length > 0:
            self.speed = way / length * step / TICK
            self.at = self.at + way / length * step
        else:
            self.goals.pop(0)
            if not self.goals and self.mode == "RTL":
                self.armed = False
            elif self.mode == "TAKEOFF":
                self.mode = "HOLD"

    def _report(self) -> None:
        send, self._tick = self._link.mav, self._tick + 1
        (longitude, latitude), (east, north, up) = self._degrees(self.at), self.speed
        send.global_position_int_send(
            0, latitude, longitude, int(1000 * (SEA + self.at[2])), int(1000 * self.at[2]),
            int(100 * north), int(100 * east), int(-100 * up), 0,
        )  # fmt: skip
        send.attitude_send(0, *ATTITUDE, 0, 0, 0)
        if self._tick % 5:
            return
        main, sub = MODES[self.kind][self.mode]
        custom = main if self.kind == "ardupilot" else main << 16 | sub << 24
        base = mavlink.MAV_MODE_FLAG_CUSTOM_MODE_ENABLED | 128 * self.armed
        autopilot = {"ardupilot": 3, "px4": 12}[self.kind]
        send.heartbeat_send(mavlink.MAV_TYPE_QUADROTOR, autopilot, base, custom, 4)
        send.sys_status_send(GOOD, GOOD, self.health, 0, 16000, 100, 80, 0, 0, 0, 0, 0, 0)
        for number, charge in self.batteries.items():
            cells, rest = [4000] * 4 + [65535] * 6, (100, -1, -1, charge)
            send.battery_status_send(number, 0, 0, 2500, cells, *rest)
        flies = self.at[2] > 0.05
        send.extended_sys_state_send(0, 2 if flies else 1)
        (longitude, latitude) = self._degrees(self.home)
        pose = [0.0, 0.0, 0.0, [1.0, 0.0, 0.0, 0.0], 0.0, 0.0, 0.0]
        send.home_position_send(latitude, longitude, int(1000 * SEA), *pose)

    def _degrees(self, metres: Any) -> list[int]:
        return [round(1e7 * angle) for angle in self.place.degrees(metres[None, :2])[0].tolist()]

    # Messages of the pilot ----------------------------------------------------------------

    def _on_command_long(self, message: Any) -> None:
        self._command(message, message.param7)

    def _on_command_int(self, message: Any) -> None:
        self._command(message, message.z)

    def _command(self, message: Any, altitude: float) -> None:
        names = {400: "arm", 22: "takeoff", 176: "mode", 192: "goto", 511: "rate"}
        name = names.get(message.command, str(message.command))
        accepted = not self.refusals.get(name)
        if not accepted:
            self.refusals[name] -= 1
        elif name in names.values() and name != "rate":
            accepted = getattr(self, f"_do_{name}")(message, altitude)
            self.commands.append(name)
        self._link.mav.command_ack_send(message.command, 0 if accepted else 1)

    def _do_arm(self, message: Any, _: float) -> bool:
        self.arming = True
        self.arms.wait()
        self.armed = message.param1 == 1
        return True

    def _do_mode(self, message: Any, _: float) -> bool:
        asked = int(message.param2), 0 if math.isnan(message.param3) else int(message.param3)
        (self.mode,) = [name for name, mode in MODES[self.kind].items() if mode == asked]
        self.goals = []
        if self.mode == "RTL":
            level = self.params["RTL_RETURN_ALT" if self.kind == "px4" else "RTL_ALT"]
            up, home = max(self.at[2], level / (1 if self.kind == "px4" else 100)), self.home
            self.goals = [np.array([*self.at[:2], up]), np.array([*home[:2], up]), home]
        return True

    def _do_takeoff(self, _: Any, altitude: float) -> bool:
        if not self.armed or (self.kind == "ardupilot" and self.mode != "GUIDED"):
            return False
        if self.kind == "px4":
            self.mode, altitude = "TAKEOFF", self.params["MIS_TAKEOFF_ALT"]
        self.goals = [np.array([*self.at[:2], altitude])]
        return True

    def _do_goto(self, message: Any, altitude: float) -> bool:
        if self.mode != {"px4": "HOLD", "ardupilot": "GUIDED"}[self.kind] or self.at[2] < 0.05:
            return False
        degrees = np.array([[message.y, message.x]]) / 1e7
        self.goals = [np.array([*self.place.metres(degrees)[0], altitude - SEA])]
        return True

    def _on_param_request_read(self, message: Any) -> None:
        if message.param_id in self.params:
            self._send_param(message.param_id)

    def _on_param_set(self, message: Any) -> None:
        name, value = message.param_id, message.param_value
        if name not in self.params or message.param_type != self._param_type(name):
            return  # as PX4 does
        if name in INTEGERS:
            (value,) = struct.unpack("i", struct.pack("f", value))
        self.params[name] = value
        self._send_param(name)

    def _send_param(self, name: str) -> None:
        value, kind = self.params[name], self._param_type(name)
        if name in INTEGERS:
            (value,) = struct.unpack("f", struct.pack("i", int(value)))
        self._link.mav.param_value_send(name.encode(), value, kind, len(self.params), 0)

    def _param_type(self, name: str) -> int:
        return mavlink.MAV_PARAM_TYPE_INT32 if name in INTEGERS else mavlink.MAV_PARAM_TYPE_REAL32

    def _on_mission_count(self, message: Any) -> None:
        self.fence, self._expected = [], message.count
        self._asking = message.get_srcSystem(), message.get_srcComponent()
        self._ask()

    def _on_mission_item_int(self, message: Any) -> None:
        if message.seq == len(self.fence):
            self.fence.append(message)
            self._ask()

    def _ask(self) -> None:
        kind, seq = mavlink.MAV_MISSION_TYPE_FENCE, len(self.fence)
        if seq < self._expected:
            self._link.mav.mission_request_int_send(*self._asking, seq, kind)
        else:
            self._link.mav.mission_ack_send(*self._asking, self._fence_result, kind)
