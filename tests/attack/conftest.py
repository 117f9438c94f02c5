# SPDX-License-Identifier: Apache-2.0
"""Fixtures: daemons of the build, ended and looked at after each test."""

import pathlib
import subprocess
import types

import pytest

import harness


@pytest.fixture
def start_daemon(tmp_path: pathlib.Path):
    """start_daemon(*flags, **Daemon's keywords): each one must be alive, or ended by the test, and end cleanly."""
    started = []

    def start(*flags, **keywords) -> harness.Daemon:
        started.append(harness.Daemon(tmp_path / f"daemon{len(started)}", *flags, **keywords).start())
        return started[-1]

    yield start
    try:
        for daemon in started:
            assert daemon.stop() in (0, -9), f"rankprobed ended with {daemon.process.returncode}: {daemon.log()[-2000:]}"
    finally:
        for daemon in started:
            daemon.kill()


@pytest.fixture
def daemon(start_daemon) -> harness.Daemon:
    """An open daemon on loopback: no TLS, no tokens."""
    return start_daemon()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> pathlib.Path:
    """deploy/certs.sh's directory: ca, server, agent, operator, viewer, tokens, *.token."""
    directory = tmp_path_factory.mktemp("certificates")
    subprocess.run([harness.ROOT / "deploy" / "certs.sh", directory], check=True, capture_output=True)
    return directory


# Two ranks' tokens, and one of each other role; 32 hex digits as openssl makes them.
TOKENS = types.SimpleNamespace(
    alice="a1" * 16, bob="b2" * 16, operator="0e" * 16, viewer="7f" * 16,
    text="agent alice {0}\nagent bob {1}\noperator olga {2}\nviewer vera {3}\n".format(
        "a1" * 16, "b2" * 16, "0e" * 16, "7f" * 16))


@pytest.fixture
def tokens():
    """Tokens of the daemon `secured`: .alice and .bob are agents, .operator, .viewer."""
    return TOKENS


@pytest.fixture
def start_secured(start_daemon, tmp_path: pathlib.Path):
    """start_secured(*flags, text=token file): plain text on loopback, tokens in force."""
    def start(*flags, text: str = TOKENS.text, **keywords) -> harness.Daemon:
        path = tmp_path / "tokens"
        path.write_text(text)
        path.chmod(0o600)
        return start_daemon("--token-file", path, *flags, **keywords)

    return start


@pytest.fixture
def secured(start_secured) -> harness.Daemon:
    return start_secured()
