"""Keeps one private collector as long as somebody uses it. Run as a script:

    _supervise.py DIRECTORY RANKPROBED [FLAG..]

Users hold a shared lock on DIRECTORY/users.lock, which the kernel lets go
whatever way they end. When nobody holds it the collector is told to end, and
its archive is removed unless DIRECTORY/keep exists.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys


def main() -> int:
    directory, binary, *flags = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    users = os.open(os.path.join(directory, "users.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    collector = subprocess.Popen([binary, *flags], stdin=subprocess.DEVNULL)
    fcntl.flock(users, fcntl.LOCK_EX)  # granted when the last user has gone
    collector.terminate()
    try:
        collector.wait(timeout=60)
    except subprocess.TimeoutExpired:
        collector.kill()
        collector.wait()
    if not os.path.exists(os.path.join(directory, "keep")):
        shutil.rmtree(directory, ignore_errors=True)
        try:
            os.rmdir(os.path.dirname(directory))
        except OSError:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
