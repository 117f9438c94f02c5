# SPDX-License-Identifier: Apache-2.0
"""Code that all Python front ends share: config.json, steps, the session with the collector, exports.
It does not depend on a framework; each front end describes its own with a Framework."""
