# SPDX-License-Identifier: Apache-2.0
"""Wheels run with glibc 2.28 (packaging/wheel): what the programs here take from a newer one has a stand-in there.

The link of a wheel fails for a name that is missing, but wheels are built in a stage of its own; this asks each build.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

import rankprobe

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release"))
OLDEST = (2, 28)
# Older ones have these too: they moved between libraries, or became exact.
ONLY_NUMBERED_ANEW = frozenset((
    "__libc_start_main", "dladdr", "dlclose", "dlerror", "dlopen", "dlsym", "exp", "hypot", "hypotf", "log", "log2", "pow",
    "pthread_atfork", "pthread_attr_setstacksize", "pthread_cond_clockwait", "pthread_condattr_setclock", "pthread_create",
    "pthread_detach", "pthread_getattr_np", "pthread_getspecific", "pthread_join", "pthread_key_create", "pthread_key_delete",
    "pthread_kill", "pthread_once", "pthread_rwlock_rdlock", "pthread_rwlock_unlock", "pthread_rwlock_wrlock",
    "pthread_setname_np", "pthread_setspecific", "pthread_sigmask", "sem_init", "sem_post", "sem_wait", "shm_open", "shm_unlink"))
# Of a part of the library that is linked in.
NONSHARED = frozenset(("stat", "fstat", "lstat", "fstatat"))


def _stand_ins() -> set[str]:
    text = (ROOT / "packaging/wheel/glibc_compat.c").read_text()
    return {"__libc_single_threaded", *re.findall(r"^\w[\w ]*[ *](\w+)\(", text, re.M)}


def _built() -> list[pathlib.Path]:
    package = pathlib.Path(rankprobe.__file__).parent
    return [BUILD / "bin/rankprobed", BUILD / "bin/rankprobe", *sorted(package.glob("*.so"))]


def _newer(path: pathlib.Path) -> set[str]:
    listed = subprocess.run(["objdump", "-T", path], check=True, text=True, capture_output=True).stdout
    found = re.findall(r"\(?GLIBC_(\d+)\.(\d+)\S*\)? +(\w+)$", listed, re.M)
    assert found, listed[:500]
    return {name for major, minor, name in found if (int(major), int(minor)) > OLDEST}


def test_stand_ins_are_found() -> None:
    assert {"mallinfo2", "arc4random", "pthread_cond_clockwait", "posix_spawn_file_actions_addclosefrom_np"} <= _stand_ins()


@pytest.mark.parametrize("path", _built(), ids=lambda path: path.name.split(".")[0])
def test_what_is_newer_than_wheels_promise_has_a_stand_in(path) -> None:
    assert _newer(path) - ONLY_NUMBERED_ANEW - NONSHARED <= _stand_ins()
