# SPDX-License-Identifier: Apache-2.0
"""The errors of rankprobe.pytorch: those of every front end."""

from rankprobe._frontend.errors import CollectorMissingError, InterfaceUsageError, InvalidParameterError, RankprobeError

__all__ = ["CollectorMissingError", "InterfaceUsageError", "InvalidParameterError", "RankprobeError"]
