# SPDX-License-Identifier: Apache-2.0
"""Client of a page's server (`rankprobe view` or a collector), for requests as the page sends them and for invalid ones."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any


class PageClient:
    """`origin` is such as "http://127.0.0.1:8080". Each request uses a separate connection."""

    def __init__(self, origin: str, token: str | None = None, ca: Any = None, seconds: float = 120) -> None:
        self.origin = origin
        self.token = token
        scheme, _, place = origin.partition("://")
        self.host, _, port = place.rpartition(":")
        self.port = int(port)
        self.tls = ssl.create_default_context(cafile=ca) if scheme == "https" else None
        self._seconds = seconds

    def connect(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=self._seconds)
        return http.client.HTTPSConnection(self.host, self.port, timeout=self._seconds, context=self.tls)

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
        connection = self.connect()
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        response.connection = connection  # Keeps the connection open as long as the response exists.
        return response

    def post(self, method: str, request: Any, **headers: str) -> http.client.HTTPResponse:
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        token = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return self.ask("POST", f"/api/v1/{method}", body, {**token, "Content-Type": "application/json", **headers})

    def call(self, method: str, **request: Any) -> Any:
        """Returns the parsed answer; a list if it has several lines of JSON."""
        response = self.post(method, request)
        text = response.read()
        assert response.status == 200, text
        if response.getheader("Content-Type") == "application/x-ndjson":
            return [json.loads(line) for line in text.splitlines()]
        assert response.getheader("Content-Type") == "application/json"
        return json.loads(text)

    def error(self, method: str, request: Any, **headers: str) -> tuple[int, str, str]:
        response = self.post(method, request, **headers)
        error = json.loads(response.read())["error"]
        return response.status, error["code"], error["message"]

    def about(self) -> dict:
        token = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        response = self.ask("GET", "/api/v1/about", headers=token)
        text = json.loads(response.read())
        assert response.status == 200, text
        return text
