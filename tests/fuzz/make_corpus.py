# SPDX-License-Identifier: Apache-2.0
"""Writes the binary seeds of fuzz_control, fuzz_directives and fuzz_lane.

    python3 tests/fuzz/make_corpus.py

Messages are given as protobuf text and encoded by protoc; a seed is a row of
pieces (see pieces.h). Needed only when messages change.
"""

import pathlib
import struct
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto"


def encode(message: str, text: str) -> bytes:
    return subprocess.run(
        ["protoc", f"-I{PROTO}", f"--encode=rankprobe.v1.{message}", "rankprobe/v1/agent.proto",
         "rankprobe/v1/control.proto"], input=text.encode(), capture_output=True, check=True).stdout


def row(*pieces: tuple) -> bytes:
    """Of kinds with the name and text of a message, with bytes, or alone."""
    out = b""
    for kind, *rest in pieces:
        body = (rest[0] if isinstance(rest[0], bytes) else encode(*rest)) if rest else b""
        out += struct.pack("<BH", kind, len(body)) + body
    return out


CONFIG = r'config_json: "{\"dump_path\": \"d\", \"dump_enable\": false}"'
SPEC = '''flight { steps: 3 } rules { name: "n" non_finite {} } rules { name: "s" silence { after_ms: 200 } }
rules { name: "r" replica {} } budget { bytes_per_run: 1000 }'''


def hello(rank: int) -> tuple:
    return (0, "Hello", f'identity {{ run: "r" rank: {rank} incarnation: {rank + 5} host: "h" pid: {rank + 9} }} '
                        f'protocol: 1 step: -1 {CONFIG}')


def event(session: int, text: str) -> tuple:
    return (1 + 12 * session, "AgentEvent", text)


def place(at: int, length: int = 0, offset: int = 0) -> bytes:
    return at.to_bytes(3, "big") + length.to_bytes(3, "big") + offset.to_bytes(3, "big")


def lane(sequence: int, at: int, length: int, more: str = "") -> tuple:
    return (0, "UploadFrame", f'sequence: {sequence} chunk {{ digest: "0123456789abcdef" length_bytes: 8 '
                              f'lane {{ offset_bytes: {at} length_bytes: {length} }} {more} }}')


TOP = (1 << 64) - 1
TICK = (8,)
SEEDS = {
    "control/switch": row(
        hello(0), hello(1), event(0, "progress { step: 3 last_step_ns: 100000000 }"),
        (3, "SetDumpEnableRequest", 'run: "r" enable: true options { for_steps: 2 }'),
        event(0, "prepared { epoch: 2 current_step: 3 accepted: true }"),
        event(1, "prepared { epoch: 2 current_step: 3 accepted: true }"),
        event(0, "applied { epoch: 2 step: 5 }"), event(1, "applied { epoch: 2 step: 5 }"), TICK,
        (2, "SetConfigRequest", f'run: "r" {CONFIG} expected_epoch: 2'), TICK, (9,)),
    "control/watch": row(
        hello(0), hello(1), (4, "SetTriggersRequest", f'run: "r" spec {{ {SPEC} }}'),
        event(0, "progress { step: 3 }"), event(0, 'fired { rule: "n" step: 3 entry: "e" detail: "d" }'),
        event(0, "replica { step: 3 digest: 1 }"), event(1, "replica { step: 3 digest: 2 }"),
        (5, "ShipFlightRequest", 'run: "r" ranks: 0'), event(0, "flight { steps: 1 first_step: 1 last_step: 1 }"),
        event(0, 'budget { step: 1 budget: "b" degraded: 1 used: 2 limit: 1 }'), TICK, TICK, TICK, (11,),
        (7, "ListEventsRequest", 'run: "r" limit: 3')),
    "control/explain": row(
        hello(0), (6, "ExplainRequest", 'run: "r" call: "relu" step: 4 max_calls: 5'),
        event(0, 'calls { id: 1 step: 3 calls { items { kind: KIND_API entry: "Torch.relu.0.forward" } '
                 'items { kind: KIND_MODULE_BEGIN entry: "Module.a.A.forward.0" } '
                 'items { kind: KIND_MODULE_END entry: "Module.a.A.forward.0" } '
                 'items { kind: KIND_PARAMETERS_GRAD entry: "Module.a.A" } } }'),
        (6, "ExplainRequest", f'run: "r" rank: 0 {CONFIG}'), TICK, event(0, "rank_known { rank: 3 }"),
        event(0, "goodbye { }"), (9,)),
    "control/records": row(
        (10, "RecordBatch", 'step: 1 records { trace { items { kind: KIND_API entry: "a" } } } '
                            'records { call { entry: "a" kind: CALL_KIND_API_FORWARD output { } } }')),
    "directives/plan": row(
        (1,), (0, "Directive", f'prepare {{ plan {{ epoch: 1 {CONFIG} enabled: true effective_at_step: 2 }} }}'),
        (0, "Directive", "commit { epoch: 1 }"), (1,), (1,), (0, "Directive", "abort { epoch: 1 }"),
        (0, "Directive", f'welcome {{ plan {{ epoch: 3 {CONFIG} }} triggers {{ {SPEC} }} degrade: 1 }}')),
    "directives/watch": row(
        (0, "Directive", f"triggers {{ {SPEC} }}"), (1,),
        (2, "CallPhase", 'entry: "e" output { items { tensor { stats { max_f: nan min_f: 0 norm_f: 3 } } } }'),
        (0, "Directive", 'ship_flight { reason: "x" }'), (3,), (0, "Directive", "report_calls { id: 4 }"),
        (0, "Directive", "degrade { level: 2 }"), (1,), (3,)),
}
SEEDS |= {
    "lane/payload": row((1, place(4096)[:3] + b"a tensor"), (2, place(4096, 7)), (2, place(0, 9000)),
                        (2, place(4090, (1 << 20) + 50000)), (6, place(4090, (1 << 20) + 50000, (1 << 20) - 256))),
    "lane/changed": row((1, place(0)[:3] + b"12345678"), (130, place(0, 7)), (2, place(0, 7)), (130, place(0, 70000))),
    "lane/liars": row(lane(1, 2 << 20, 1), lane(1, TOP, TOP), lane(1, TOP - 3, 8), lane(1, 0, 0), lane(1, 0, TOP),
                      lane(1, 0, 1 << 20), lane(1, 0, 8, 'data: "12345678"'), lane(1, 0, 8, "crc32c: 1"),
                      lane(1, 0, 9), lane(1, 0, 8)),
    "lane/not_handed_over": row((3, "UploadFrame", 'sequence: 1 chunk { digest: "0123456789abcdef" length_bytes: 8 '
                                                   "lane { length_bytes: 8 } }"),
                                (3, "UploadFrame", 'sequence: 1 chunk { digest: "0123456789abcdef" length_bytes: 8 '
                                                   'data: "12345678" }')),
}

for name, data in SEEDS.items():
    (HERE / "corpus" / name).parent.mkdir(exist_ok=True)
    (HERE / "corpus" / name).write_bytes(data)
    print(f"{name}: {len(data)} bytes")
