"""Messages survive the way, and whatever is not a message is dropped and counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from marl_framework.flying.messages import (
    DamagedError,
    Envelope,
    Inbox,
    Message,
    Plan,
    Position,
    Reading,
    Stage,
    decode,
    encode,
)

MISSION = 7
SHAPE = (11, 11, 3)
NUMBERS = st.integers(0, 2**16 - 2)
PLACES = st.tuples(NUMBERS, NUMBERS, NUMBERS)
ENVELOPES = st.builds(
    Envelope,
    st.integers(0, 2**64 - 1),
    st.integers(0, 255),
    st.integers(0, 2**16 - 1),
    st.floats(allow_nan=False),
    st.integers(0, 2**32 - 1),
)
LOST = st.frozensets(st.integers(0, 63))
CAUTIONS = st.just(1.0) | st.floats(0, 1, exclude_min=True, width=32)
SIZES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=20)
MESSAGES = st.one_of(
    st.builds(Position, ENVELOPES, PLACES, st.none() | PLACES, st.sampled_from(Stage), LOST),
    st.builds(Reading, ENVELOPES, PLACES, arrays.arrays(np.bool_, SIZES), CAUTIONS),
    st.builds(Plan, ENVELOPES, PLACES, arrays.arrays(np.float32, SIZES)),
)


def fields(message: Message) -> list[Any]:
    """Type and fields, with arrays as their shape and bytes."""
    values = [type(message), *vars(message).values()]
    return [(v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values]


@given(MESSAGES)
def test_a_message_is_decoded_as_it_was_encoded(message: Message) -> None:
    assert fields(decode(encode(message))) == fields(message)


@given(MESSAGES, st.data())
def test_a_truncated_message_is_damaged(message: Message, data: st.DataObject) -> None:
    sent = encode(message)
    with pytest.raises(DamagedError):
        decode(sent[: data.draw(st.integers(0, len(sent) - 1))])


@settings(max_examples=300)
@given(MESSAGES, st.data())
def test_a_message_with_flipped_bits_is_damaged(message: Message, data: st.DataObject) -> None:
    sent = bytearray(encode(message))
    bits = st.integers(0, 8 * len(sent) - 1)
    for bit in data.draw(st.sets(bits, min_size=1, max_size=3)):
        sent[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedError):
        decode(bytes(sent))


@given(st.binary(max_size=200))
def test_noise_is_damaged(noise: bytes) -> None:
    with pytest.raises(DamagedError):
        decode(noise)


def test_the_largest_reading_is_below_4_kb() -> None:
    bits = np.random.default_rng(1).random((170, 170)) < 0.5
    assert len(encode(Reading(Envelope(1, 0, 0, 0.0), (0, 0, 0), bits))) < 4000


NEXT, OTHER = (1, 2, 1), (1, 0, 1)
PLACE = (1, 1, 1)


def position(move: int, number: int = 0, sender: int = 1, **more: Any) -> bytes:
    place, mission = more.pop("place", PLACE), more.pop("mission", MISSION)
    return encode(Position(Envelope(mission, sender, move, 0.0, number), place, **more))


def reading(move: int, sender: int = 1) -> bytes:
    return encode(Reading(Envelope(MISSION, sender, move, 0.0), PLACE, np.ones((2, 2), bool)))


def plan(move: int) -> bytes:
    return encode(Plan(Envelope(MISSION, 1, move, 0.0), PLACE, np.ones((2, 2), np.float32)))


@pytest.mark.parametrize(
    ("messages", "dropped"),
    [
        ([position(5), position(5, 1, next=NEXT), reading(5), plan(5), plan(4)], {}),
        ([position(4, next=NEXT), position(4, 1, next=NEXT), position(5, 2, place=NEXT)], {}),
        ([position(4, next=NEXT), position(6, 9)], {}),  # positions between are lost
        ([position(5, stage=stage, number=stage) for stage in Stage], {}),
        ([position(5, mission=8), position(5, sender=4)], {"foreign": 2}),
        ([position(5, place=(11, 0, 0)), position(5, next=(0, 0, 3))], {"foreign": 2}),
        ([position(5, sender=0)], {"impostor": 1}),
        ([position(5), position(5)], {"double": 1}),
        ([position(5, next=NEXT), position(5, 1, next=OTHER)], {"impostor": 1}),
        ([position(5, next=NEXT), position(5, next=OTHER)], {"impostor": 1}),
        ([position(5, next=NEXT), position(5, 1)], {"impostor": 1}),
        ([position(5), position(5, 1, place=NEXT)], {"impostor": 1}),
        ([position(5), position(4, 1)], {"impostor": 1}),
        ([position(4, next=NEXT), position(5, 1)], {"impostor": 1}),
        ([reading(5), reading(5), plan(5), plan(5)], {"double": 2}),
        ([reading(4), plan(3)], {"late": 2}),
        ([position(6, 1), position(5)], {"late": 1}),
        ([b"", b"abc", position(5)[:-1], reading(5) + b"x"], {"damaged": 4}),
    ],
)
def test_an_inbox_counts_what_it_drops(messages: list[bytes], dropped: dict[str, int]) -> None:
    inbox = Inbox(MISSION, 0, 4, SHAPE)
    accepted = [inbox.put(message, move=5) for message in messages]
    assert inbox.dropped == dropped
    assert accepted.count(None) == sum(dropped.values())
    assert bool(inbox.impostors) == ("impostor" in dropped)


def test_an_inbox_keeps_what_was_announced_and_read() -> None:
    inbox = Inbox(MISSION, 0, 4, SHAPE)
    for message in (reading(5), reading(6, sender=2), position(5, next=NEXT)):
        inbox.put(message, move=5)
    assert inbox.announced(1, 5) == NEXT
    assert inbox.announced(1, 4) is inbox.announced(2, 5) is None
    assert inbox.has_arrived(1, 5)
    assert not inbox.has_arrived(1, 6)
    assert not inbox.has_arrived(2, 5)
    assert inbox.get(Reading, 1, 5) is not None
    assert inbox.get(Reading, 2, 5) is None
    starting = encode(Position(Envelope(MISSION, 3, 0, 0.0), PLACE, stage=Stage.STARTING))
    inbox.put(starting, move=0)
    assert not inbox.has_arrived(3, 0)
    inbox.forget(6)
    assert inbox.get(Reading, 1, 5) is None
    assert inbox.get(Reading, 2, 6) is not None
