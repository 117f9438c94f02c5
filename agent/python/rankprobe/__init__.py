# SPDX-License-Identifier: Apache-2.0
"""rankprobe for Python: a session to the collector and what is pushed through it.

    import rankprobe
    session = rankprobe.Session("127.0.0.1:7411", run="my-run", rank=0)
    for batch in data:
        session.start()
        ...
        if session.recording:
            session.call("Torch", "matmul", [a, b], [c])
        session.stop()
        session.step()

on_collector_missing="fail" (or "spool", "ignore"; default:
RANKPROBE_ON_COLLECTOR_MISSING, else "ignore") says what follows when no
collector answers: an error here, records kept in RANKPROBE_SPOOL, or none.

Tensors are NumPy arrays or torch CPU tensors of any PyTorch version: they are
read by address, shape, strides and dtype.
"""

from rankprobe._native import Session, __version__

__all__ = ["Session", "__version__"]
