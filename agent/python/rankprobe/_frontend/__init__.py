# SPDX-License-Identifier: Apache-2.0
"""What every front end of Python shares: config.json, the step, the session with the
collector, the trees. Knows no framework; each says what it is with a Framework."""
