# SPDX-License-Identifier: Apache-2.0
# Containers for real, with podman and runc in place of Docker's engine: the
# Dockerfile is built, docker-compose.yml comes up, is switched, exported and loses
# a trainer; deploy/kubernetes is played with its volume, probes and ranks. Not part
# of the default run: needs root, network and some 10 GB.
stage_test() {
  source "$RANKPROBE_ROOT/tests/package/chroot.sh"
  source "$RANKPROBE_ROOT/tests/package/cases.sh"
  source "$RANKPROBE_ROOT/tests/containers/podman.sh"
  install_packages "$RANKPROBE_ROOT/packaging/packages.txt"
  podman_settings
  test_case "a base image by debootstrap" podman_base_image
  test_case "the image of the Dockerfile" podman_build
  RANKPROBE_CONTAINERS=yes part "compose and manifests played" run_pytest /usr/bin/python3 "$RANKPROBE_ROOT/tests/containers"
  parts_print
}
