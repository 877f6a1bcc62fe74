"""MAVSDK reads the plans and uploads them to an autopilot of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment.flying import missions, plan
from tests.flying.processes import free_port, wait_for
from tests.flying.tracks import Array

mavsdk = pytest.importorskip("mavsdk")
mission_raw = pytest.importorskip("mavsdk.plugins.mission_raw")
mission_raw_server = pytest.importorskip("mavsdk.plugins.mission_raw_server")


@pytest.fixture
def link() -> Iterator[tuple[Any, list[Any]]]:
    """Return MAVSDK's uploader, and the missions that its autopilot has received."""
    mavsdk.log_subscribe(lambda *_: True)
    kinds, port = mavsdk.ComponentType, free_port(socket.SOCK_DGRAM)
    ground, autopilot = (
        mavsdk.Mavsdk(mavsdk.Configuration.create_with_component_type(kind))
        for kind in (kinds.GROUND_STATION, kinds.AUTOPILOT)
    )
    ground.add_any_connection(f"udpin://127.0.0.1:{port}")
    autopilot.add_any_connection(f"udpout://127.0.0.1:{port}")
    server = mission_raw_server.MissionRawServer(autopilot.server_component())
    received: list[Any] = []
    server.subscribe_incoming_mission(lambda result, found, _: received.append(found))
    system = ground.first_autopilot(20.0)
    assert system is not None
    yield mission_raw.MissionRaw(system), received
    ground.destroy()
    autopilot.destroy()


def accepted(uploader: Any, items: list[Any]) -> bool:
    """Upload a mission; False while the uploader does not know yet what the autopilot supports."""
    try:
        uploader.upload_mission(items)
    except mission_raw.MissionRawError as error:
        if "INT_MESSAGES_NOT_SUPPORTED" not in str(error):
            raise
        return False
    return True


def test_an_autopilot_receives_the_mission_of_a_plan(
    flown: Path, link: tuple[Any, list[Any]]
) -> None:
    uploader, received = link
    folder, _ = missions(flown)[0]
    for uav in (1, 2, 3):
        written = plan(folder, uav)
        items = written["mission"]["items"]
        expected = np.array([(i["command"], i["frame"], *i["params"][4:]) for i in items], float)
        found = uploader.import_qgroundcontrol_mission(str(folder / f"uav_{uav}.plan"))
        wait_for(partial(accepted, uploader, found.mission_items))

        def arrived(expected: Array = expected) -> bool:
            items = received[-1].mission_items if received else []
            given = [(i.command, i.frame, i.x / 1e7, i.y / 1e7, i.z) for i in items]
            return len(given) == len(expected) and np.allclose(given, expected, atol=1e-6)

        wait_for(arrived)
        (border,) = (
            ring["polygon"] for ring in written["geoFence"]["polygons"] if ring["inclusion"]
        )
        corners = [(item.x / 1e7, item.y / 1e7) for item in found.geofence_items[: len(border)]]
        np.testing.assert_allclose(corners, border, atol=1e-6)
        assert len(found.rally_items) == len(written["rallyPoints"]["points"])
