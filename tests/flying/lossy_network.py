"""A network of computers that loses, delays and reorders packets; needs root and /dev/net/tun."""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import TracebackType

_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000


def is_possible() -> bool:
    """Return whether this process may make networks."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and _TUN.exists()


def enter(namespace: str) -> None:
    """Move this process, and the threads it starts, to a network namespace."""
    file = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(file)


class LossyNetwork:
    """Namespaces with one address each, 10.9.0.1, 10.9.0.2, …, and the packets between them.

    A packet is lost with probability `loss`, or arrives after `delay` ± `spread` [s], before or
    after others.

    Attributes:
        namespaces: names of the namespaces.
        cut_off: numbers, from 1, of namespaces whose packets are all lost.
    """

    def __init__(self, size: int, loss: float, delay: float, spread: float) -> None:
        self._loss, self._delay, self._spread = loss, delay, spread
        self._random, self._stopped = random.Random(1), False
        self.cut_off: set[int] = set()
        self.namespaces = [f"lossy{os.getpid()}-{number}" for number in range(1, size + 1)]
        self._numbers = set(range(1, size + 1))
        self._files = [self._connect(*end) for end in enumerate(self.namespaces, 1)]
        self._carrier = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> LossyNetwork:
        """Carry packets."""
        self._carrier.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Remove the network."""
        self._stopped = True
        self._carrier.join()
        for file, name in zip(self._files, self.namespaces, strict=True):
            os.close(file)
            _ip(f"netns del {name}")

    @staticmethod
    def _connect(number: int, name: str) -> int:
        """Make a namespace; return the file with the packets that it sends and receives."""
        file, device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK), f"l{os.getpid() % 10**6}-{number}"
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip(f"netns add {name}")
        _ip(f"link set {device} netns {name}")
        _ip(f"-n {name} address add 10.9.0.{number}/24 dev {device}")
        for each in (device, "lo"):
            _ip(f"-n {name} link set {each} up")
        return file

    def _carry(self) -> None:
        due: list[tuple[float, int, int, bytes]] = []  # time, order, file, packet
        order = 0
        with DefaultSelector() as selector:
            for file in self._files:
                selector.register(file, EVENT_READ)
            while not self._stopped:
                for key, _ in selector.select(0.005):
                    packet, order = os.read(key.fd, 65536), order + 1
                    ends = {packet[15], packet[19]} if packet[0] >> 4 == 4 else {0}  # addresses
                    to = packet[19] - 1
                    lost = bool(ends & self.cut_off) or self._random.random() < self._loss
                    if ends <= self._numbers and not lost:
                        wait = self._delay + self._random.uniform(-1, 1) * self._spread
                        heapq.heappush(
                            due, (time.monotonic() + wait, order, self._files[to], packet)
                        )
                while due and due[0][0] <= time.monotonic():
                    _, _, file, packet = heapq.heappop(due)
                    os.write(file, packet)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
