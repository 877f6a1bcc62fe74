"""A radio carries messages in order, between the UAVs of one mission, and over a cut link again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from marl_framework.config.errors import ConfigError
from marl_framework.flying.messages import Envelope, Plan, Position, Reading, decode, encode
from marl_framework.flying.zenoh_radio import ZenohRadio
from tests.flying.processes import free_port, wait_for
from tests.flying.relay import Relay

pytest.importorskip("zenoh")
MISSION, PATIENCE = 7, 30.0
Join = Callable[..., ZenohRadio]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def join() -> Iterator[Join]:
    """Return a function that opens the radio of a UAV: the first listens, the others connect."""
    with ExitStack() as stack:

        def open_radio(uav: int, port: int, mission: int = MISSION) -> ZenohRadio:
            end = f"tcp/127.0.0.1:{port}"
            ends = ([], [end]) if uav == 0 else ([end], ["tcp/127.0.0.1:0"])
            radio = ZenohRadio(mission, uav, *ends)
            stack.callback(radio.close)
            return radio

        yield open_radio


def messages(uav: int, moves: int, mission: int = MISSION) -> list[bytes]:
    sent = []
    for move in range(moves):
        envelope = Envelope(mission, uav, move, 0.0)
        bits = np.random.default_rng(move).random((170, 170)) < 0.5
        plan = np.full((11, 11), move, np.float32)
        sent += [
            encode(Reading(envelope, (0, 0, 0), bits)),
            encode(Plan(envelope, (0, 0, 0), plan)),
        ]
        sent += [encode(Position(envelope, (0, 0, 0)))]
    return sent


def gather(radio: ZenohRadio, number: int) -> list[bytes]:
    received: list[bytes] = []

    def enough() -> bool:
        received.extend(radio.receive())
        return len(received) >= number

    wait_for(enough)
    return received


def test_messages_arrive_in_order_and_once(join: Join, port: int) -> None:
    radios = [join(uav, port) for uav in range(3)]
    for radio in radios:
        wait_for(lambda radio=radio: radio.present == {0, 1, 2})
    sent = [messages(uav, 20) for uav in range(3)]
    for parts in zip(*sent, strict=True):
        for radio, data in zip(radios, parts, strict=True):
            radio.send(data)
    for uav, radio in enumerate(radios):
        received = gather(radio, 2 * len(sent[0]))
        for other in range(3):
            own = [data for data in received if decode(data).envelope.sender == other]
            assert own == (sent[other] if other != uav else [])
        assert radio.receive() == []


def test_missions_do_not_hear_each_other(join: Join, port: int) -> None:
    radio, other = join(0, port), join(1, port, mission=MISSION + 1)
    late = join(2, port)
    wait_for(lambda: radio.present == late.present == {0, 2})
    other.send(messages(1, 1, MISSION + 1)[0])
    late.send(messages(2, 1)[0])
    assert gather(radio, 1) == messages(2, 1)[:1]
    assert other.present == {1}


def test_a_uav_that_leaves_is_no_longer_present(join: Join, port: int) -> None:
    radio, other = join(0, port), join(1, port)
    wait_for(lambda: radio.present == {0, 1})
    other.close()
    wait_for(lambda: radio.present == {0})
    other.send(messages(1, 1)[0])  # lost, without an error
    assert radio.receive() == []


def test_a_uav_that_leaves_repeats_its_last_position_until_all_have_left(
    join: Join, port: int
) -> None:
    radio, other = join(0, port), join(1, port)
    wait_for(lambda: radio.present == other.present == {0, 1})
    first, last = messages(1, 2)[2::3]
    for data in first, last:
        other.send(data)
    assert gather(radio, 2) == [first, last]
    leaving = threading.Thread(target=other.leave)
    leaving.start()
    assert gather(radio, 2) == [last, last]
    wait_for(lambda: radio.present == {0})
    radio.leave()  # returns at once, as all others have left
    leaving.join(PATIENCE)
    assert not leaving.is_alive()


def test_a_cut_link_is_opened_again(join: Join, port: int) -> None:
    radio, relay = join(0, port), Relay(port)
    other = join(1, relay.port)
    wait_for(lambda: radio.present == other.present == {0, 1})
    relay.cut()
    wait_for(lambda: radio.present == {0} and other.present == {1})
    for data in messages(0, 2):
        radio.send(data)
    relay.mend()
    wait_for(lambda: radio.present == other.present == {0, 1})
    last = encode(Position(Envelope(MISSION, 0, 9, 0.0), (1, 1, 1)))
    radio.send(last)
    assert gather(other, 1)[-1] == last
    relay.close()


@pytest.mark.parametrize("end", ["nonsense", "tcp/127.0.0.1:{busy}"])
def test_bad_endpoints_are_refused(join: Join, port: int, end: str) -> None:
    join(0, port)
    with pytest.raises(ConfigError, match=r"--listen: cannot use .*; give") as error:
        ZenohRadio(MISSION, 1, [], [end.format(busy=port)])
    assert "msg:" not in str(error.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zenoh", None)
    with pytest.raises(ConfigError, match=r"marl_framework\[fly\]"):
        ZenohRadio(MISSION, 0)
