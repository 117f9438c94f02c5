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

Tensors are NumPy arrays or torch CPU tensors of any PyTorch version: they are
read by address, shape, strides and dtype.
"""

from rankprobe._native import Session

__all__ = ["Session"]
__version__ = "0.1.0"
