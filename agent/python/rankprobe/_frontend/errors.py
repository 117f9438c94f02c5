# SPDX-License-Identifier: Apache-2.0
"""Errors of the Python front end."""


class RankprobeError(Exception):
    """Base of every error that rankprobe raises into user code."""


class InvalidParameterError(RankprobeError, ValueError):
    """A parameter has the wrong type or value; the message says which."""


class CollectorMissingError(RankprobeError, TimeoutError):
    """The collector, named or private, does not answer or refuses the session. For a
    named one it is raised only if on_collector_missing is "fail"."""


class InterfaceUsageError(RankprobeError, RuntimeError):
    """A call out of order, such as start() before the debugger exists."""
