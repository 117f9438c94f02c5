# SPDX-License-Identifier: Apache-2.0
"""In-memory S3 store with the operations that a collector uses: objects, multipart uploads, ranges, lists, If-None-Match.
For tests that stop a certain request at a certain point. The behaviour of a real store is tested with Ceph (tests/scale).
Signatures are not checked."""

from __future__ import annotations

import http.server
import re
import threading
import urllib.parse
from typing import Callable
from xml.sax.saxutils import escape


class S3Stub:
    """`url` is an endpoint for any bucket. Each request has its own thread, which calls `before(method, key)`, executes the
    request, calls `after(method, key)` and answers. A function that blocks holds only this request; one that raises OSError
    closes its connection.

    keeps_condition: whether If-None-Match is supported."""

    def __init__(self, keeps_condition: bool = True):
        self.keeps_condition = keeps_condition
        self.before: Callable[[str, str], None] = lambda method, key: None
        self.after: Callable[[str, str], None] = lambda method, key: None
        self.objects: dict[str, bytes] = {}
        # Parts by upload and number; None if the upload has ended.
        self.parts: dict[str, dict[int, bytes] | None] = {}
        self.lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def keys(self, part: str = "") -> list[str]:
        with self.lock:
            return sorted(key for key in self.objects if part in key)


def _error(code: str) -> bytes:
    return f"<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>said by a stub</Message></Error>".encode()


def _handler_of(stub: S3Stub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are written separately, which Nagle's algorithm would delay.
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = urllib.parse.urlsplit(self.path)
            _, _, key = urllib.parse.unquote(parts.path).lstrip("/").partition("/")
            query = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
            try:
                stub.before(self.command, key)
                with stub.lock:
                    answer = self._do(key, query, body)
                stub.after(self.command, key)
                self._answer(*answer[:2], **(answer[2] if len(answer) > 2 else {}))
            except OSError:
                # The client was killed in the meantime, or the test closes the connection.
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = _request

        def _do(self, key: str, query: dict[str, list[str]], body: bytes) -> tuple:
            objects = stub.objects
            if "list-type" in query:
                return self._list(query)
            if "uploads" in query or "uploadId" in query:
                return self._upload(key, query, body)
            if self.command == "PUT" and not query:
                if stub.keeps_condition and self.headers.get("If-None-Match") == "*" and key in objects:
                    return 412, _error("PreconditionFailed")
                objects[key] = body
                return 200, b"", {"ETag": '"e"'}
            if self.command == "DELETE" and not query:
                objects.pop(key, None)
                return 204, b""
            if self.command == "GET" and not query:
                return self._get(key)
            return 501, _error("NotImplemented")

        def _upload(self, key: str, query: dict[str, list[str]], body: bytes) -> tuple:
            upload = query.get("uploadId", [f"upload{len(stub.parts)}"])[0]
            if self.command == "POST" and "uploads" in query:
                stub.parts[upload] = {}
                return 200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode()
            if upload not in stub.parts or stub.parts[upload] is None:
                return 404, _error("NoSuchUpload")
            if self.command == "PUT":
                stub.parts[upload][int(query["partNumber"][0])] = body
                return 200, b"", {"ETag": '"e"'}
            if self.command == "POST":
                stub.objects[key] = b"".join(data for _, data in sorted(stub.parts[upload].items()))
            stub.parts[upload] = None
            return 200 if self.command == "POST" else 204, b"<CompleteMultipartUploadResult/>" if self.command == "POST" else b""

        def _get(self, key: str) -> tuple:
            if key not in stub.objects:
                return 404, _error("NoSuchKey")
            data = stub.objects[key]
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if not asked:
                return 200, data
            if not asked[1]:
                first, last = max(len(data) - int(asked[2]), 0), len(data) - 1
            else:
                first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            if first > last:
                return 416, _error("InvalidRange")
            return 206, data[first:last + 1], {"Content_Range": f"bytes {first}-{last}/{len(data)}"}

        @staticmethod
        def _list(query: dict[str, list[str]]) -> tuple:
            prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
            most = int(query.get("max-keys", ["1000"])[0])
            # Keys are ordered by bytes, not by characters.
            keys = sorted((k for k in stub.objects if k.startswith(prefix) and k.encode() > after.encode()), key=str.encode)
            found = "".join(f"<Contents><Key>{escape(k)}</Key><Size>{len(stub.objects[k])}</Size></Contents>" for k in keys[:most])
            more = "true" if len(keys) > most else "false"
            return 200, f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{found}</ListBucketResult>".encode()

    return Handler
