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

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankprobe._native import Session, __version__
    from rankprobe._recording import Recording
    from rankprobe.pytorch.isolation import Isolation


def __getattr__(name: str) -> Any:
    """Session and __version__. Not with the package, which each pytest of an environment imports for its plugin."""
    if name in ("Session", "__version__"):
        from rankprobe import _native

        return getattr(_native, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def isolate(model: Any, reference: str | os.PathLike[str], **options: Any) -> Isolation:
    """A context manager around one step of `model` (or a list of models) that judges each module on the inputs which
    `reference`, a dump of task tensor, recorded for it; yields the report (docs/two-runs-differ.md).

    options: step, rank (of a reference with several), tolerance (None: from dtype and length of sums), layer_mapping and
    cell_mapping (as in rankprobe.analysis.compare), force. Bad input raises ValueError in one line.
    """
    from rankprobe.pytorch.isolation import Isolation

    return Isolation(model, reference, **options)


def open(source: str | os.PathLike[str], *, run: str | None = None, collector: str | None = None) -> Recording:
    """A run, for notebooks: its frame(), plot() and diagnose() (docs/notebooks.md).

    source: the name of a run in `collector` (else that of RANKPROBE_COLLECTOR), or a directory: an archive that no
    collector has open, where `run` chooses one of several, or a dump.
    """
    from rankprobe._recording import Recording

    return Recording(source, run=run, collector=collector)


# Without open: `from rankprobe import *` would hide Python's own.
__all__ = ["Session", "__version__", "isolate"]
