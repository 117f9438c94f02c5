# SPDX-License-Identifier: Apache-2.0
"""A proxy between a leaf and an S3 gateway that does to requests what networks and gateways do."""

from __future__ import annotations

import collections
import random
import socket
import threading
import time

FAULTS = ("503", "slow", "hang", "cut request", "cut answer", "lost answer")


class FaultProxy:
    """One thread a connection, one connection to the gateway a request. `fault(head)` names what becomes of the
    request with that head: one of FAULTS, "away" (nobody is there), or None."""

    def __init__(self, target: str, fault=lambda head: None):
        host, _, port = target.partition("://")[2].rpartition(":")
        self.target = (host, int(port))
        self.fault = fault
        # Of each fault how often, and of these how many were puts.
        self.done: collections.Counter = collections.Counter()
        self.puts: collections.Counter = collections.Counter()
        self._ending = threading.Event()
        self._listen = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listen.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def end(self) -> None:
        self._ending.set()
        self._listen.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listen.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                while self._request(client):
                    pass
            except OSError:
                pass

    @staticmethod
    def _read_message(peer: socket.socket) -> tuple[bytes, bytes]:
        """Head and body of a request; nothing if the peer has gone."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = peer.recv(65536)
            if not piece:
                return b"", b""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        if fields.get(b"expect") == b"100-continue":
            peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts = [body]
        missing = int(fields.get(b"content-length", 0)) - len(body)
        while missing > 0:
            piece = peer.recv(min(missing, 1 << 20))
            if not piece:
                return b"", b""
            parts.append(piece)
            missing -= len(piece)
        return head + b"\r\n\r\n", b"".join(parts)

    def _ask(self, head: bytes, body: bytes) -> bytes:
        head = b"\r\n".join(line for line in head[:-4].split(b"\r\n") if not line.lower().startswith((b"connection:", b"expect:")))
        with socket.create_connection(self.target) as gateway:
            gateway.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)
            parts = []
            while piece := gateway.recv(1 << 20):
                parts.append(piece)
        return b"".join(parts)

    def _request(self, client: socket.socket) -> bool:
        head, body = self._read_message(client)
        if not head:
            return False
        fault = self.fault(head.decode("latin-1"))
        self.done[fault] += 1
        self.puts[fault] += head.startswith(b"PUT")
        if fault == "away":
            return False
        if fault == "503":
            text = b"<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"
            client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text))
            return False
        if fault == "hang":
            # Until the client gives up.
            while not self._ending.is_set() and client.recv(65536):
                pass
            return False
        if fault == "cut request":
            # The gateway gets half of it.
            with socket.create_connection(self.target) as gateway:
                gateway.sendall((head + body)[:(len(head) + len(body)) // 2])
            return False
        answer = self._ask(head, body)
        if fault == "lost answer":
            return False
        if fault == "cut answer":
            client.sendall(answer[:len(answer) // 2])
            return False
        if fault == "slow":
            size = len(answer) // 8 + 1
            for at in range(0, len(answer), size):
                time.sleep(0.05)
                client.sendall(answer[at:at + size])
            return False
        client.sendall(answer)
        return False


def now_and_then(fault: str, seed: int, share: float, most: int = 1 << 30):
    """A choice that makes `share` of the requests faulty, at most so many of them."""
    source, lock, left = random.Random(seed), threading.Lock(), [most]

    def choose(_: str) -> str | None:
        with lock:
            if left[0] == 0 or source.random() >= share:
                return None
            left[0] -= 1
            return source.choice(FAULTS) if fault == "all" else fault

    return choose
