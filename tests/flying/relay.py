"""A TCP relay that delays what it carries, and that can be cut."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress

from tests.flying.processes import free_port


class Relay:
    """Carries bytes between those who connect to `port` and the port `target`, until `close`.

    Each piece of up to 512 bytes waits for a random time, `delay` ± `spread` [s]; later pieces wait
    for it, as a stream does after a loss.
    """

    def __init__(self, target: int, delay: float = 0.0, spread: float = 0.0) -> None:
        self.port, self._target, self._delay, self._spread = free_port(), target, delay, spread
        self._random, self._open = random.Random(1), []
        self._server: socket.socket | None = None
        self.mend()

    def mend(self) -> None:
        """Accept connections again."""
        server = self._server = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
        threading.Thread(target=self._accept, args=[server], daemon=True).start()

    def cut(self) -> None:
        """End all connections, and accept no more."""
        assert self._server is not None
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for end in self._open:
            _end(end)
        self._open = []

    close = cut

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                accepted = server.accept()[0]
            except OSError:
                return
            try:
                ends = accepted, socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # nobody listens there any more
                accepted.close()
                continue
            self._open += ends
            for source, sink in (ends, ends[::-1]):
                threading.Thread(target=self._carry, args=[source, sink], daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(512):
                if self._delay:
                    time.sleep(self._delay + self._random.uniform(-1, 1) * self._spread)
                sink.sendall(piece)
        _end(source)
        _end(sink)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
