# SPDX-License-Identifier: Apache-2.0
"""Errors of rankprobe.pytorch, which all front ends share."""

from rankprobe._frontend.errors import CollectorMissingError, InterfaceUsageError, InvalidParameterError, RankprobeError

__all__ = ["CollectorMissingError", "InterfaceUsageError", "InvalidParameterError", "RankprobeError"]
