# SPDX-License-Identifier: Apache-2.0
"""rankprobe for Python: a session that sends records to the collector.

    import rankprobe
    session = rankprobe.Session("127.0.0.1:7411", run="my-run", rank=0)
    for batch in data:
        session.start()
        ...
        if session.recording:
            session.call("Torch", "matmul", [a, b], [c])
        session.stop()
        session.step()

on_collector_missing says what happens when no collector answers: "fail" raises
an error, "spool" keeps the records in RANKPROBE_SPOOL, "ignore" records nothing.
The default is RANKPROBE_ON_COLLECTOR_MISSING, else "ignore".

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
    """Imports Session and __version__ on first use: each pytest run of an environment imports this package for its plugin, and
    must not load the native module."""
    if name in ("Session", "__version__"):
        from rankprobe import _native

        return getattr(_native, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def isolate(model: Any, reference: str | os.PathLike[str], **options: Any) -> Isolation:
    """Returns a context manager for one step of `model` (or a list of models). It judges each module on the inputs that
    `reference`, a dump of task tensor, recorded for it, and yields the report (docs/two-runs-differ.md).

    options: step and rank (select one where the reference has several), tolerance (relative; None derives it from the dtype and
    the length of sums), layer_mapping and cell_mapping (as in rankprobe.analysis.compare), force (reads files that the permission
    rule refuses). Raises ValueError with a message of one line for bad input.
    """
    from rankprobe.pytorch.isolation import Isolation

    return Isolation(model, reference, **options)


def open(source: str | os.PathLike[str], *, run: str | None = None, collector: str | None = None) -> Recording:
    """Opens a run for use in a notebook, with frame(), plot() and diagnose() (docs/notebooks.md).

    source: the name of a run in `collector` (default: RANKPROBE_COLLECTOR), or a directory. The directory is a dump, or an
    archive that no collector has open; `run` selects a run of an archive that has several.

    Raises ValueError for arguments that do not fit together, LookupError if there is no such run.
    """
    from rankprobe._recording import Recording

    return Recording(source, run=run, collector=collector)


# Excludes open, because `from rankprobe import *` would hide the built-in function.
__all__ = ["Session", "__version__", "isolate"]
