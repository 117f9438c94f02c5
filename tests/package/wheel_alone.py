# SPDX-License-Identifier: Apache-2.0
"""The unpacked wheel on a system whose Python is too old for the package: its
programs run, its extensions load and find every symbol of the C library.

    wheel_alone.py DIRECTORY
"""

import ctypes
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

package = pathlib.Path(sys.argv[1], "rankprobe")
for extension in sorted(package.glob("*.so")):
    ctypes.CDLL(str(extension), os.RTLD_LAZY)
for program in (package / "bin").iterdir():
    program.chmod(0o755)
with tempfile.TemporaryDirectory() as scratch:
    port = pathlib.Path(scratch, "port")
    collector = subprocess.Popen([str(package / "bin/rankprobed"), "--listen", "127.0.0.1:0", "--port-file", str(port),
                                  "--data-dir", scratch + "/data"])
    try:
        deadline = time.monotonic() + 60
        while not (port.exists() and port.read_text().strip()):
            assert collector.poll() is None and time.monotonic() < deadline, "no collector"
            time.sleep(0.05)
        runs = subprocess.run([str(package / "bin/rankprobe"), "--collector", "127.0.0.1:" + port.read_text().strip(),
                               "runs", "--json"], check=True, capture_output=True, text=True)
        print("glibc " + platform.libc_ver()[1] + ": runs " + runs.stdout.strip())
    finally:
        collector.terminate()
        assert collector.wait(60) == 0
