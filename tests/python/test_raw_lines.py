# SPDX-License-Identifier: Apache-2.0
"""A hostile collector writes nothing to the stderr of a trainer."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import threading

import pytest

grpc = pytest.importorskip("grpc")

SCRIPT = """
import sys, rankprobe
session = rankprobe.Session(sys.argv[1], run="raw", rank=0)
sys.stdin.read()
try:
    session.wait_connected(3)
except (TimeoutError, RuntimeError):
    pass
print("made")
session.close()
"""
# Directive.welcome with a session id that is not UTF-8, and a goodbye with such a reason.
DIRECTIVES = (b"\x0a\x06\x0a\x04\xff\xfe\x1b[", b"\x32\x06\x0a\x04\xff\xfe\x1b[")


def test_texts_that_are_not_utf8() -> None:
    sent = threading.Semaphore(0)

    class Hostile(grpc.GenericRpcHandler):
        def service(self, details):
            def answer(frames, _):
                for directive in DIRECTIVES:
                    sent.release()
                    yield directive
            return grpc.stream_stream_rpc_method_handler(answer)

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Hostile(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        trainer = subprocess.Popen([sys.executable, "-c", SCRIPT, f"127.0.0.1:{port}"], env={**os.environ}, text=True, errors="replace",
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        was_sent = sent.acquire(timeout=60)
        stdout, stderr = trainer.communicate(timeout=120)
    finally:
        server.stop(0)
    assert was_sent, "nothing was sent"
    assert stdout == "made\n" and trainer.returncode == 0, stderr
    assert "libprotobuf" not in stderr and "\x1b" not in stderr, stderr
    assert all(line.startswith("rankprobe: ") for line in stderr.splitlines()), stderr
