"""A PX4 or ArduPilot multicopter, flown over MAVLink by MAVSDK; needs the extras `fly` and `geo`.

The vehicle flies to places by the command DO_REPOSITION, in mode Hold of PX4 or Guided of
ArduPilot. Any other mode means that somebody else has taken control.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from marl_framework.config import geography
from marl_framework.config.errors import ConfigError
from marl_framework.deployment.flight_plans import FlightPlan, map_heading, parameters
from marl_framework.flying.messages import Place
from marl_framework.flying.protocols import Clock, Status
from marl_framework.mission.environment import MissionEnvironment

Metres = tuple[float, float, float]
_REST = 0.3  # speed at rest [m/s]
_RATES = dict.fromkeys(("position", "velocity_ned", "attitude_euler"), 5.0) | dict.fromkeys(
    ("battery", "health", "home", "landed_state"), 1.0
)  # of telemetry [Hz]
_PAUSE = 0.05  # between looks at the telemetry [s]
_AGAIN = 1.0  # until a refused command is repeated [s]
_SETTLES = 2.0  # until telemetry shows that the vehicle is armed [s]
_LAST = 10.0  # for the newest command at the end [s]


class _SupersededError(Exception):
    """A newer command has been given, or somebody else has taken control."""


class MavsdkVehicle:
    """A vehicle at a MAVLink address; `close` it.

    It is checked and set up at once, while no UAV hovers. A thread carries out the newest command,
    and repeats it while the vehicle refuses.

    `flight` has home, altitude and fences, see `flight_plans.open_plan`. `patience` is the wait for
    the vehicle, and again for its own checks [s]. Raises ConfigError if the extra is missing, no
    autopilot of the kind `deployment.autopilot` answers, or a check fails.
    """

    def __init__(
        self,
        url: str,
        flight: FlightPlan,
        environment: MissionEnvironment,
        place: geography.Place,
        clock: Clock,
        patience: float = 60.0,
    ) -> None:
        try:
            import mavsdk
            from mavsdk.plugins import action, geofence, param, telemetry
        except ImportError as error:
            text = "--vehicle: mavsdk is missing; pip install 'marl_framework[fly]'"
            raise ConfigError(text) from error
        self._flight, self._place, self._clock = flight, place, clock
        self._lattice, self._settings = environment.lattice, flight.settings
        self._patience, self._heading = patience, map_heading(place)
        self._goal: Metres | None = None
        self._position: Metres | None = None
        self._received = -math.inf
        self._newest: dict[str, Any] = {}
        self._charges: dict[int, float] = {}  # of each battery [%]; -1 or NaN if unknown
        self._order, self._active = 0, 0
        self._obeys = self._returns = False
        self._error: Exception | None = None
        self._refused = mavsdk.MavsdkError
        mavsdk.log_subscribe(lambda *_: True)  # prints every repetition otherwise
        kind = mavsdk.ComponentType.COMPANION_COMPUTER
        self._mavsdk = mavsdk.Mavsdk(mavsdk.Configuration.create_with_component_type(kind))
        self._thread = ThreadPoolExecutor(1, "vehicle")
        # MAVSDK calls ArduPilot's mode Guided Offboard.
        self._ardupilot, modes = self._settings.autopilot == "ardupilot", telemetry.FlightMode
        self._modes = {modes.OFFBOARD} if self._ardupilot else {modes.HOLD, modes.TAKEOFF}
        self._way_home = self._modes | {modes.RETURN_TO_LAUNCH, modes.LAND}
        self._on_ground = telemetry.LandedState.ON_GROUND
        try:
            system = self._connect(url)
            self._action, self._param = action.Action(system), param.Param(system)
            self._geofence, self._fences = geofence, geofence.Geofence(system)
            self._telemetry = telemetry.Telemetry(system)
            self._telemetry.subscribe_position(self._locate)
            self._telemetry.subscribe_battery(
                lambda battery, _: self._charges.update({battery.id: battery.remaining_percent})
            )
            for name in (*_RATES, "armed", "flight_mode"):
                getattr(self._telemetry, f"subscribe_{name}")(self._newest_of(name))
            self._thread.submit(self._set_rates)
            self._thread.submit(self._prepare).result()
        except BaseException:
            self._order += 1
            self.close()
            raise

    def take_off(self, place: Place) -> None:
        """Arm, take off, and fly to the first place at an own altitude; see `Vehicle`."""
        goal = self._goal = self._metres(place)
        level = self._flight.return_altitude

        def steps() -> None:
            known = {"armed", "landed_state"}
            self._wait(lambda: known <= self._newest.keys(), self._patience)
            # Not `status().landed`: a hold may have followed arming.
            if self._newest.get("landed_state") == self._on_ground:
                self._insist(self._action.arm)
                self._insist(self._action.takeoff)
            elif self._position is not None:  # a hold has interrupted its way
                self._reposition((*self._position[:2], level))
            low = level - self._settings.acceptance_radius
            self._wait(lambda: self._position is not None and self._position[2] > low)
            for stop in ((*goal[:2], level), goal):
                self._reposition(stop)
                self._wait(partial(self._is_at, stop))

        self._command(steps)

    def go_to(self, place: Place) -> None:
        """Fly to a place on a straight way; see `Vehicle`."""
        goal = self._goal = self._metres(place)
        self._command(lambda: self._reposition(goal))

    def hold(self) -> None:
        """Stop and stay in the air; see `Vehicle`."""
        self._goal, here = None, self._position
        if self._ardupilot and here is not None:  # its Loiter follows the sticks of a transmitter
            self._command(lambda: self._reposition(here))
        else:
            self._command(lambda: self._insist(self._action.hold))

    def return_home(self) -> None:
        """Climb, fly home, land and switch off the motors; see `Vehicle`."""
        self._goal, self._returns = None, True

        def steps() -> None:
            if self._wait(lambda: not self.status().landed, _SETTLES):
                self._insist(self._action.return_to_launch)

        self._command(steps)

    def arrived(self) -> bool:
        """Return whether the vehicle is at rest at its place; see `Vehicle`."""
        if self._error is not None:
            raise self._error
        return self._goal is not None and self._is_at(self._goal)

    def status(self) -> Status:
        """Return the newest telemetry; see `Vehicle`."""
        mode = self._newest.get("flight_mode")
        known = [percent for percent in [*self._charges.values()] if percent >= 0]
        charge = min(known, default=math.nan) / 100
        self._obeys |= mode in self._modes
        controlled = not self._obeys or mode in (self._way_home if self._returns else self._modes)
        lands = self._newest.get("landed_state") == self._on_ground
        landed = lands and not self._newest.get("armed", True)
        attitude = None
        if angles := self._newest.get("attitude_euler"):
            attitude = (angles.roll_deg, angles.pitch_deg, angles.yaw_deg - self._heading)
        return Status(self._received, self._position, charge, controlled, landed, attitude)

    def close(self) -> None:
        """Finish the newest command unless the vehicle is on the ground, and leave the vehicle."""
        if self.status().landed:  # nothing may take off from now on
            self._order += 1
        with suppress(TimeoutError):
            self._thread.submit(lambda: None).result(_LAST)
        self._order += 1
        self._thread.shutdown()
        self._mavsdk.destroy()

    # Telemetry ----------------------------------------------------------------------------

    def _connect(self, url: str) -> Any:
        try:
            self._mavsdk.add_any_connection_with_handle(url)
        except Exception as error:
            text = f"--vehicle {url}: {error}; give an address such as udpin://0.0.0.0:14541"
            raise ConfigError(text) from error
        system, end = None, time.monotonic() + self._patience
        while system is None and time.monotonic() < end:
            system = self._mavsdk.first_autopilot(0.2)  # briefly: Ctrl-C waits for the call
        if system is None:
            raise ConfigError(f"--vehicle {url}: no autopilot answers; check the connection")
        name = system.autopilot_type().name.lower()
        if name != self._settings.autopilot:
            raise ConfigError(f"deployment.autopilot: {url} is {name}; set it to ardupilot or px4")
        return system

    def _set_rates(self) -> None:
        for name, rate in _RATES.items():
            with suppress(self._refused):  # its own rates, then
                getattr(self._telemetry, f"set_rate_{name}")(rate)

    def _newest_of(self, name: str) -> Callable[[Any, Any], None]:
        return lambda value, _: self._newest.update({name: value})

    def _locate(self, position: Any, _: Any) -> None:
        degrees = np.array([[position.longitude_deg, position.latitude_deg]])
        known = bool(np.isfinite(degrees).all())
        x, y = self._place.metres(degrees)[0].tolist() if known else (0.0, 0.0)
        self._position = (x, y, position.relative_altitude_m) if known else None
        self._received = self._clock.now()  # last: `metres` may raise far from the area

    def _is_at(self, goal: Metres) -> bool:
        here, speed = self._position, self._newest.get("velocity_ned")
        if here is None or speed is None:
            return False
        slow = math.hypot(speed.north_m_s, speed.east_m_s, speed.down_m_s) < _REST
        return slow and math.dist(here, goal) <= self._settings.acceptance_radius

    # Commands, in the thread --------------------------------------------------------------

    def _command(self, steps: Callable[[], object]) -> None:
        """Carry out steps instead of those of earlier commands."""
        self._order += 1

        def run(order: int) -> None:
            if order != self._order:
                return
            self._active = order
            try:
                with suppress(_SupersededError):
                    steps()
            except Exception as error:
                self._error = error  # for `arrived`, as nobody looks at this thread

        self._thread.submit(run, self._order)

    def _wait(self, ready: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until something holds; return whether it does."""
        end = time.monotonic() + seconds
        while not (done := ready()) and time.monotonic() < end:
            time.sleep(_PAUSE)
            self._check()
        return done

    def _check(self) -> None:
        """Raise _SupersededError if the present command must end."""
        taken_over = self._active > 0 and not self.status().controlled
        if self._active != self._order or taken_over:
            raise _SupersededError

    def _insist(self, command: Callable[..., Any], *args: Any, seconds: float = math.inf) -> bool:
        """Repeat a command until the vehicle accepts it; return whether it does in time."""
        end = time.monotonic() + seconds
        while True:
            self._check()  # also after a command that took long, such as to arm
            with suppress(self._refused):
                command(*args)
                return True
            if time.monotonic() >= end:
                return False
            self._wait(lambda: False, _AGAIN)

    def _reposition(self, goal: Metres) -> None:
        longitude, latitude = self._place.degrees(np.array([goal[:2]]))[0].tolist()
        altitude = self._newest["home"].absolute_altitude_m + goal[2]
        self._insist(self._action.goto_location, latitude, longitude, altitude, self._heading)

    def _prepare(self) -> None:
        """Check the vehicle, and send parameters and fences. Raises ConfigError."""

        def missing() -> list[str]:
            health = self._newest.get("health")
            parts = "global_position_ok", "home_position_ok", "armable"
            names = [name for name in parts if not getattr(health, f"is_{name}", False)]
            return names + [name for name in ("home", "battery") if name not in self._newest]

        if not self._wait(lambda: not missing(), self._patience):
            text = f"--vehicle: lacks {', '.join(missing())}; see the autopilot's messages"
            raise ConfigError(text)
        home, flight = self._newest["home"], self._flight
        ends = np.array([[home.longitude_deg, home.latitude_deg], flight.home[::-1]])
        distance = math.dist(*self._place.metres(ends).tolist())
        if distance > self._settings.pad_distance / 2:
            raise ConfigError(
                f"deployment.home: UAV {flight.uav} is {distance:.0f} m from its pad; move it "
                "there, or set home"
            )
        taken = [name for name, value in parameters(flight).items() if self._set(name, value)]
        ways_home = " ".join(name for name in taken if name.startswith("RTL"))
        if "ALT" not in ways_home or "CONE" not in ways_home:
            raise ConfigError("--vehicle: takes no return altitude; check the autopilot's version")
        # Not with the take-off, which PX4 may begin before it uses a new value.
        self._demand(self._action.set_takeoff_altitude, flight.return_altitude)
        make, kinds = self._geofence, self._geofence.FenceType
        borders = [(flight.border, kinds.INCLUSION)]
        borders += [(fence, kinds.EXCLUSION) for fence in flight.fences]
        polygons = [make.Polygon([make.Point(*at) for at in ring], kind) for ring, kind in borders]
        self._demand(self._fences.upload_geofence, make.GeofenceData(polygons, []))

    def _demand(self, command: Callable[..., Any], *args: Any) -> None:
        """Repeat a command until the vehicle accepts it. Raises ConfigError if it does not."""
        if not self._insist(command, *args, seconds=self._patience):
            text = f"--vehicle: refuses {command.__name__}; see the autopilot's messages"
            raise ConfigError(text)

    def _set(self, name: str, value: float) -> bool:
        """Set a parameter; return whether the vehicle has it."""
        try:
            if isinstance(value, int) and not self._ardupilot:  # PX4 ignores the other type
                self._param.set_param_int(name, value)
            else:
                self._param.set_param_float(name, float(value))
        except self._refused as error:
            if not str(error).startswith("WRONG_TYPE"):
                return False
            return self._insist(
                self._param.set_param_int, name, round(value), seconds=self._patience
            )
        return True

    def _metres(self, place: Place) -> Metres:
        x, y, z = self._lattice.metres(torch.tensor(place)).tolist()
        return x, y, z
