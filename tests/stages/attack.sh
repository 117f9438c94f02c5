# Attacks on a real daemon with its real flags; docs/security.md names each.
build rankprobed rankprobe
RANKPROBE_BUILD_DIR=$RANKPROBE_BUILD_DIR run_pytest /usr/bin/python3 "$RANKPROBE_ROOT/tests/attack"
