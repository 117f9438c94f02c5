#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that rankprobe needs; does nothing when all are there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
install_packages
