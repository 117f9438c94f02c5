# SPDX-License-Identifier: Apache-2.0
"""Tools for attacks on a real daemon: rankprobed with its real flags, and clients that
send messages that no agent sends.

All connections use loopback, and all waits have a deadline. wire.py makes the
messages; the tests import its functions from here. Not thread-safe. To the collector
a RawAgent looks like one process of a job.
"""

from __future__ import annotations

import json
import os
import pathlib
import queue
import random
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterable

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Deadline in seconds for immediate effects; generous, because a machine that also runs other tests is slow.
SOON = 60.0
# Deadline in seconds of every stream, whatever the daemon does.
STREAM_SECONDS = 300.0

sys.path.append(str(ROOT / "tests" / "lib"))

from rankprobed import BIN, BUILD, Rankprobed  # noqa: E402, F401
from polling import wait_for  # noqa: E402, F401
from wire import (access, agent, agent_grpc, archive, archive_grpc, begin_record, call, call_record,  # noqa: E402, F401
                  control, control_grpc, crc32c, digest, end_record, leaf, tensor, text, types, watch)


# --- the daemon ---------------------------------------------------------------


class Daemon(Rankprobed):
    """A daemon with its clients and its state in /proc. `token`: the default token of clients that are made here."""

    def __init__(self, directory: pathlib.Path, *flags: Any, token: str | None = None, **settings: Any):
        super().__init__(directory, *flags, **settings)
        self.token = token
        self._channels: list[grpc.Channel] = []

    def stop(self, seconds: float = 120) -> int:
        self.close_channels()
        return super().stop(seconds)

    def kill(self) -> None:
        self.close_channels()
        super().kill()

    def log(self) -> str:
        return self.log_text()

    def audit(self) -> list[dict]:
        """Records of audit.jsonl; every line must be JSON."""
        return [json.loads(line) for line in (self.data_dir / "audit.jsonl").read_text().splitlines()]

    # State in /proc.

    def _status(self, key: str) -> int:
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * (1024 if line.endswith("kB") else 1)
        raise AssertionError(f"/proc/{self.process.pid}/status has no {key}")

    def memory(self) -> int:
        """Returns the resident size in bytes."""
        return self._status("VmRSS")

    def peak_memory(self) -> int:
        """Largest resident size so far."""
        return self._status("VmHWM")

    def threads(self) -> int:
        return self._status("Threads")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_seconds(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # Clients.

    def channel(self, token: str | None = None, credentials: grpc.ChannelCredentials | None = None,
                options: Iterable[tuple[str, Any]] = ()) -> grpc.Channel:
        """Returns a separate connection whose calls carry `token` ("": none; None: the daemon's default)."""
        settings = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
                    ("grpc.use_local_subchannel_pool", 1), *options]
        channel = (grpc.secure_channel(self.address, credentials, settings) if credentials
                   else grpc.insecure_channel(self.address, settings))
        self._channels.append(channel)
        token = self.token if token is None else token
        return grpc.intercept_channel(channel, _BearerToken(token)) if token else channel

    def close_channels(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channels.clear()

    def control(self, token: str | None = None) -> control_grpc.ControlServiceStub:
        return control_grpc.ControlServiceStub(self.channel(token))

    def archive(self, token: str | None = None) -> archive_grpc.ArchiveServiceStub:
        return archive_grpc.ArchiveServiceStub(self.channel(token))

    def cli(self, *arguments: Any, check: bool = False, **settings: Any) -> subprocess.CompletedProcess:
        return super().cli(*arguments, check=check, **settings)


class _BearerToken(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor,
                   grpc.StreamUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    def __init__(self, token: str):
        self._token = token

    def _call(self, continuation, details, request):
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self._token}")]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept_unary_stream = _call
    intercept_stream_unary = intercept_stream_stream = _call


def outcome(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> tuple[str, Any]:
    """Executes an RPC. Returns ("OK", response), with a list of responses for a stream, or (status name, message)."""
    keywords.setdefault("timeout", SOON)
    try:
        response = call(*arguments, **keywords)
        if hasattr(response, "add_done_callback"):
            response = list(response)
        return "OK", response
    except grpc.RpcError as error:
        return error.code().name, error.details()


# --- a client that sends anything ------------------------------------------------


class Stream:
    """A bidirectional call that sends any message and reads with a deadline."""

    def __init__(self, method: Callable, read: bool = True, seconds: float = STREAM_SECONDS):
        self._outgoing: queue.Queue = queue.Queue()
        self._incoming: queue.Queue = queue.Queue()
        self.status: tuple[str, str] | None = None
        self._ended = threading.Event()
        self._call = method(iter(self._outgoing.get, None), timeout=seconds)
        self._reader: threading.Thread | None = None
        if read:
            self.start_reading()

    def start_reading(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        status = ("OK", "")
        try:
            for message in self._call:
                self._incoming.put(message)
        except grpc.RpcError as error:
            status = (error.code().name, error.details() or "")
        except ValueError as error:  # The channel was closed.
            status = ("CANCELLED", str(error))
        self.status = status
        self._ended.set()
        self._incoming.put(None)

    def send(self, message: Any) -> None:
        self._outgoing.put(message)

    def receive(self, seconds: float = SOON) -> Any:
        """Returns the next message; None if the stream has ended. Raises TimeoutError."""
        try:
            message = self._incoming.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError("the daemon said nothing") from None
        if message is None:
            self._incoming.put(None)
        return message

    def waiting(self) -> list:
        """Returns the messages that have arrived and were not received, without removing them."""
        with self._incoming.mutex:
            return [m for m in self._incoming.queue if m is not None]

    def end(self, seconds: float = SOON) -> tuple[str, str]:
        """Waits for the end of the stream and returns (status name, message). Raises AssertionError after `seconds`."""
        if not self._ended.wait(seconds):
            raise AssertionError(f"the stream was still open after {seconds} s")
        return self.status

    @property
    def open(self) -> bool:
        return not self._ended.is_set()

    def close(self) -> None:
        """Ends the client's side of the stream."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        self._outgoing.put(None)
        self._call.cancel()


class RawAgent:
    """A rank as the collector sees it, which need not follow the protocol.

    The constructor opens a Session (and an Upload). If the daemon refuses, `refused`
    is (status name, message) and other methods do not work. `hello` replaces the
    complete Hello; other keywords are fields of the Identity or the Hello. With
    `session_id`, opens an Upload in an existing session, without a Session.
    """

    def __init__(self, daemon: Daemon, run: str = "run", rank: int | None = 0, *, incarnation: int | None = None,
                 secret: bytes | None = None, pid: int = 1234, host: str = "node", world_size: int = 1,
                 config: str = "", step: int = 0, hello: agent.Hello | None = None, session_id: str | None = None,
                 upload: bool = True, first_sequence: int = 0, token: str | None = None,
                 channel: grpc.Channel | None = None):
        self.stub = agent_grpc.AgentServiceStub(channel or daemon.channel(token))
        self.identity = types.Identity(
            run=run, world_size=world_size, host=host, pid=pid,
            incarnation=random.getrandbits(63) | 1 if incarnation is None else incarnation)
        if rank is not None:
            self.identity.rank = rank
        self.secret = os.urandom(32) if secret is None else secret
        self.sequence = 0
        self.session: Stream | None = None
        self.upload: Stream | None = None
        self.welcome: agent.Welcome | None = None
        self.opened: agent.UploadAck | None = None
        self.acks: list[agent.UploadAck] = []
        self.refused: tuple[str, str] | None = None
        self.session_id = session_id
        if session_id is None:
            self.session = Stream(self.stub.Session)
            if hello is None:
                hello = agent.Hello(identity=self.identity, protocol=1, agent_version="0", framework_version="attack",
                                    config_json=config, step=step, incarnation_secret=self.secret)
            self.session.send(agent.AgentEvent(hello=hello))
            answer = self.session.receive()
            if answer is None:
                self.refused = self.session.end()
                return
            self.welcome = answer.welcome
            self.session_id = answer.welcome.session_id
        if upload:
            self.open_upload(first_sequence)

    @property
    def incarnation(self) -> int:
        return self.identity.incarnation

    def open_upload(self, first_sequence: int = 0) -> bool:
        """Opens a new Upload of the session without closing the old one. Returns False if it is refused."""
        self.upload = Stream(self.stub.Upload)
        self.upload.send(agent.UploadFrame(open=agent.UploadOpen(
            session_id=self.session_id, identity=self.identity, first_sequence=first_sequence)))
        self.opened = self.upload.receive()
        if self.opened is None:
            self.refused = self.upload.end()
            return False
        self.sequence = self.opened.committed
        return True

    def event(self, **body: Any) -> None:
        self.session.send(agent.AgentEvent(**body))

    def frame(self, **body: Any) -> int:
        """Sends the next frame of the sequence and returns its number."""
        self.sequence += 1
        self.upload.send(agent.UploadFrame(sequence=self.sequence, **body))
        return self.sequence

    def raw_frame(self, frame: agent.UploadFrame) -> None:
        self.upload.send(frame)

    def batch(self, step: int, records: Iterable[types.Record]) -> int:
        return self.frame(batch=agent.RecordBatch(step=step, records=records))

    def chunk(self, payload_digest: bytes, length: int, offset: int, data: bytes, crc: int | None = None) -> int:
        return self.frame(chunk=agent.PayloadChunk(digest=payload_digest, length_bytes=length, offset_bytes=offset,
                                                   data=data, crc32c=crc32c(data) if crc is None else crc))

    def payload(self, data: bytes, payload_digest: bytes | None = None, piece: int = 512 << 10) -> bytes:
        """Sends a complete payload and returns its digest. The digest is correct unless another one is given."""
        payload_digest = payload_digest or digest(data)
        for offset in range(0, len(data), piece):
            self.chunk(payload_digest, len(data), offset, data[offset:offset + piece])
        return payload_digest

    def offer(self, *payloads: tuple[bytes, int]) -> None:
        """Sends PayloadOffers of (digest, length) pairs."""
        self.upload.send(agent.UploadFrame(offers=agent.PayloadOffers(
            digests=[p[0] for p in payloads], length_bytes=[p[1] for p in payloads])))

    def answers(self, payload_digest: bytes, seconds: float = SOON) -> str:
        """Returns the collector's answer to an offer: "have", "coming" or "wanted". Raises AssertionError if the upload ends."""
        deadline = time.monotonic() + seconds
        while True:
            ack = self.upload.receive(max(0.01, deadline - time.monotonic()))
            if ack is None:
                raise AssertionError(f"the upload ended: {self.upload.end()}")
            self.acks.append(ack)
            for word, digests in (("have", ack.have_digests), ("coming", ack.coming_digests),
                                  ("wanted", ack.wanted_digests)):
                if payload_digest in digests:
                    return word

    def committed(self, sequence: int | None = None, seconds: float = SOON) -> bool:
        """Returns whether the frame (default: the last one) is acknowledged as committed before the stream ends or the time is over."""
        return self._acked(lambda ack: ack.committed, sequence, seconds)

    def synced(self, sequence: int | None = None, seconds: float = SOON) -> bool:
        return self._acked(lambda ack: ack.synced, sequence, seconds)

    def _acked(self, level: Callable, sequence: int | None, seconds: float) -> bool:
        sequence = self.sequence if sequence is None else sequence
        if any(level(ack) >= sequence for ack in self.acks):
            return True
        deadline = time.monotonic() + seconds
        while True:
            try:
                ack = self.upload.receive(max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                return False
            if ack is None:
                return False
            self.acks.append(ack)
            if level(ack) >= sequence:
                return True

    def step(self, step: int = 0, data: bytes = b"\1\2\3\4" * 64, entry: str = "Torch.relu.0.forward", *,
             send_payload: bool = True, **begin: Any) -> int:
        """Sends a complete step: begin, one call whose output is `data` as float32, end. Returns the number of the frame."""
        if send_payload:
            self.payload(data)
        return self.batch(step, [begin_record(0, **begin), call_record(1, call(entry, [tensor(data)])),
                                 end_record(2, 1, 1)])

    def goodbye(self) -> None:
        """Cancels both streams, as when a process dies."""
        for stream in (self.upload, self.session):
            if stream is not None:
                stream.cancel()


def follow(rank: RawAgent, stop: threading.Event, step: int) -> threading.Thread:
    """Starts a thread that answers directives like a rank that makes steps, until `stop` is set."""

    def work() -> None:
        now, plan = step, None
        while not stop.wait(0.02):
            for directive in rank.session.waiting():
                if directive.HasField("prepare"):
                    plan = directive.prepare.plan
                    rank.event(prepared=agent.PlanPrepared(epoch=plan.epoch, current_step=now,
                                                           accepted=plan.effective_at_step > now))
            now += 1
            rank.event(progress=agent.StepProgress(step=now, last_step_ns=20_000_000))
            if plan is not None and now >= plan.effective_at_step:
                rank.event(applied=agent.PlanApplied(epoch=plan.epoch, step=now))
                plan = None

    thread = threading.Thread(target=work)
    thread.start()
    return thread


# --- results ---------------------------------------------------------------------


def export(daemon: Daemon, run: str, directory: pathlib.Path, *flags: Any, gaps: bool = False) -> pathlib.Path:
    """Exports the run and returns the directory. With `gaps`, the exit code of `rankprobe export` must report missing data."""
    result = daemon.cli("export", "--run", run, "-o", directory, *flags)
    assert result.returncode == (1 if gaps else 0), f"{result.stdout}\n{result.stderr}\n{daemon.log()[-2000:]}"
    return directory


def exported_tensors(tree: pathlib.Path) -> dict[str, bytes]:
    """Returns the raw bytes of each .pt file in an exported directory, by its path below it."""
    import zipfile
    found = {}
    for path in sorted(tree.glob("step*/*/dump_tensor_data/*.pt")):
        with zipfile.ZipFile(path) as archive_file:
            name = next(n for n in archive_file.namelist() if n.endswith("/data/0"))
            found[str(path.relative_to(tree))] = archive_file.read(name)
    return found
