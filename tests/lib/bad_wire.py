# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between ranks and a collector that damages or withholds data.

Flips bits only in the payload of HTTP/2 DATA frames, because gRPC 1.51 aborts the process for some damaged HEADERS
frames. Uses one thread for each connection."""

from __future__ import annotations

import random
import select
import socket
import threading

_PREFACE = 24
UP, DOWN = 0, 1


class BadWire:
    def __init__(self, target: str, seed: int = 0, flip_bytes: tuple[int, int] = (0, 0)):
        """`flip_bytes`: average number of bytes between flips, up and down; 0 for no flips."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._every = flip_bytes
        self._until = [self._random.randrange(1, 2 * every) if every else 0 for every in flip_bytes]
        # Direction, byte and bit of a single flip, see flip_once().
        self._once: tuple[int, int, int] | None = None
        self.flips = [0, 0]
        self.connections = 0
        # Data in these directions is withheld on connections up to this number.
        self._kept_up_to, self._kept = 0, frozenset()
        self._refuses = self._ending = False
        # Whether data from the collector is withheld on connections that have carried a request.
        self.keeps_answers = False
        self._listen = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listen.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def keep(self, *directions: int, later: bool = False) -> None:
        """Withholds data in these directions on existing connections; with `later`, also on new ones."""
        with self._lock:
            self._kept, self._kept_up_to = frozenset(directions), 1 << 30 if later else self.connections

    def cut(self) -> None:
        """Closes all connections and refuses new ones. Returns when they are closed."""
        self._refuses = True
        for thread in self._threads[1:]:
            thread.join()

    def flip_once(self, way: int, byte: int, bit: int) -> None:
        """Flips one bit: of the byte at this offset of the payload that passes from now on."""
        with self._lock:
            self._once = (way, byte, bit)

    def end(self) -> None:
        self._ending = True
        self._listen.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._ending:
            if not select.select([self._listen], [], [], 0.1)[0]:
                continue
            try:
                client, _ = self._listen.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            with self._lock:
                self.connections += 1
                number = self.connections
            thread = threading.Thread(target=self._serve, args=(client, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, number: int) -> None:
        framing = (_Framing(_PREFACE), _Framing(0))
        try:
            with client, socket.create_connection(self._target) as target:
                sides = {client: (UP, target), target: (DOWN, client)}
                for one in sides:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while not self._ending and not self._refuses:
                    for one in select.select(list(sides), [], [], 0.1)[0]:
                        data = bytearray(one.recv(1 << 16))
                        if not data:
                            return
                        way, other = sides[one]
                        if number <= self._kept_up_to and way in self._kept:
                            continue
                        if way == DOWN and self.keeps_answers and framing[UP].has_data:
                            continue
                        for first, last in framing[way].data_of(data):
                            self._damage(way, data, first, last)
                        other.sendall(data)
        except OSError:
            pass

    def _damage(self, way: int, data: bytearray, first: int, last: int) -> None:
        with self._lock:
            if self._once is not None and self._once[0] == way:
                _, byte, bit = self._once
                if byte < last - first:
                    data[first + byte] ^= 1 << bit
                    self.flips[way] += 1
                    self._once = None
                else:
                    self._once = (way, byte - (last - first), bit)
            every = self._every[way]
            if not every:
                return
            while first + self._until[way] < last:
                first += self._until[way]
                data[first] ^= 1 << self._random.randrange(8)
                self.flips[way] += 1
                self._until[way] = self._random.randrange(1, 2 * every)
            self._until[way] -= last - first


class _Framing:
    """Parser of the HTTP/2 frames in one direction of a connection."""

    def __init__(self, left: int):
        self._left, self._is_data, self._header = left, False, bytearray()
        self.has_data = False

    def data_of(self, data: bytearray):
        """Yields the ranges (first, end) of `data` that are payload of DATA frames."""
        at = 0
        while at < len(data):
            if self._left == 0:
                need = 9 - len(self._header)
                self._header += data[at:at + need]
                at = min(at + need, len(data))
                if len(self._header) == 9:
                    self._left, self._is_data = int.from_bytes(self._header[:3], "big"), self._header[3] == 0
                    self._header.clear()
                continue
            end = min(at + self._left, len(data))
            if self._is_data:
                self.has_data = True
                yield at, end
            self._left -= end - at
            at = end
