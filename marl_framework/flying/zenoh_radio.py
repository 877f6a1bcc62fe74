"""A radio over Zenoh; needs the extra `fly`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from marl_framework.config.errors import ConfigError
from marl_framework.flying.messages import Position, decode

if TYPE_CHECKING:
    import zenoh

_QUEUE, _LINK = "transport/link/tx/queue/congestion_control", "transport/unicast"
_REPEAT = 1.0  # time between two repetitions of the last position [s]
_WAITS = {
    # A congested link loses a reading, or is closed and opened again for a position [µs].
    f"{_QUEUE}/drop/wait_before_drop": 50_000,
    f"{_QUEUE}/block/wait_before_close": 500_000,
    # Where packets are lost, TCP repeats them for long, and a new link would lose as many [ms].
    "transport/link/tx/lease": 60_000,
    f"{_LINK}/open_timeout": 60_000,
    f"{_LINK}/accept_timeout": 60_000,
}


class ZenohRadio:
    """The radio of one UAV; `close` it.

    Positions have the key `marl/<mission>/position/<uav>`, readings and plans have
    `marl/<mission>/data/<uav>`. A congested link drops readings and plans; positions wait for it.
    Messages of a UAV arrive in the order in which it sent them. The liveliness token
    `marl/<mission>/alive/<uav>` exists until the UAV leaves, or the radio is closed.

    `connect` has endpoints of other UAVs or of routers, such as `tcp/10.0.0.1:7447`; `listen` has
    those to which others connect, by default a free TCP port. Without both, UAVs find each other by
    multicast.

    Attributes:
        present: indices of the UAVs that are reached, its own among them.

    Raises:
        ConfigError: the extra is missing, or an endpoint cannot be used.
    """

    def __init__(
        self, mission: int, uav: int, connect: Sequence[str] = (), listen: Sequence[str] = ()
    ) -> None:
        try:
            import zenoh
        except ImportError as error:
            text = "--radio: zenoh is missing; pip install 'marl_framework[fly]'"
            raise ConfigError(text) from error
        self._new: SimpleQueue[bytes] = SimpleQueue()
        self._uav, self._last_position = uav, b""
        self.present: set[int] = set()
        self._error, key = zenoh.ZError, f"marl/{mission:016x}"
        try:
            config = zenoh.Config()
            for name, value in _settings(connect, listen).items():
                config.insert_json5(name, json.dumps(value))
            self._session = session = zenoh.open(config)
        except zenoh.ZError as error:
            ends = ", ".join([*connect, *listen]) or "multicast"
            # Without what Rust adds, such as places in Zenoh's code.
            reason = str(error).rpartition('msg: "')[2].split(" at /")[0]
            raise ConfigError(
                f"--radio, --listen: cannot use {ends}: {reason}; give endpoints such as "
                "tcp/10.0.0.1:7447"
            ) from error
        rules, reliable = zenoh.CongestionControl, zenoh.Reliability.RELIABLE
        self._publishers = [
            session.declare_publisher(
                f"{key}/{kind}/{uav}", congestion_control=rule, express=True, reliability=reliable
            )
            for kind, rule in (("data", rules.DROP), ("position", rules.BLOCK))
        ]
        # One subscriber, as two would not receive in order. Others send to a UAV once they know
        # its token, which therefore follows the subscriber.
        remote = zenoh.Locality.REMOTE
        alive = session.liveliness()
        received = session.declare_subscriber(f"{key}/*/*", self._take, allowed_origin=remote)
        self._token = alive.declare_token(f"{key}/alive/{uav}")
        tokens = alive.declare_subscriber(f"{key}/alive/*", self._note, history=True)
        self._subscribers = received, tokens

    def send(self, data: bytes) -> None:
        """Send a message to all others."""
        if is_position := isinstance(decode(data), Position):
            self._last_position = data
        with suppress(self._error):  # lost, as any message may be
            self._publishers[is_position].put(data)

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived since the last call."""
        return [self._new.get() for _ in range(self._new.qsize())]

    def leave(self) -> None:
        """Remove the liveliness token, and repeat the last position until all others have left."""
        self._token.undeclare()
        while self.present - {self._uav}:
            self.send(self._last_position)
            time.sleep(_REPEAT)

    def close(self) -> None:
        """Close all links; messages on their way may be lost."""
        with suppress(self._error):  # a slow link: it ends with the process
            self._session.close()

    def _take(self, sample: zenoh.Sample) -> None:
        self._new.put(sample.payload.to_bytes())

    def _note(self, sample: zenoh.Sample) -> None:
        uav = str(sample.key_expr).rsplit("/", 1)[1]
        if uav.isdecimal():
            left = str(sample.kind).endswith("DELETE")
            (self.present.discard if left else self.present.add)(int(uav))


def _settings(connect: Sequence[str], listen: Sequence[str]) -> dict[str, Any]:
    return {
        "mode": "peer",
        "connect/endpoints": list(connect),
        "scouting/multicast/enabled": not connect and not listen,
        **_WAITS,
        **({"listen/endpoints": list(listen)} if listen else {}),
    }
