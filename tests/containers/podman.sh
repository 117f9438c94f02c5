# SPDX-License-Identifier: Apache-2.0
# Podman with storage, networks and settings of its own, so that the stage meets
# nobody else's containers and leaves none: all is below build/containers and, as
# far as it must not outlive a boot, below /run. Sourced by tests/stages/containers.sh;
# needs root, no Docker engine and no registry.

containers_dir=$RANKPROBE_ROOT/build/containers
containers_run=/run/rankprobe-containers-$(printf %s "$RANKPROBE_ROOT" | sha256sum | cut -c1-8)

# Writes the settings and points podman, buildah and podman-compose to them.
podman_settings() {
  local driver=overlay
  mkdir -p "$containers_dir/trial/"{lower,upper,work,merged} "$containers_dir/networks" "$containers_run"
  # Not every kernel and file system has overlays; vfs copies a whole image a layer.
  if mount -t overlay overlay "$containers_dir/trial/merged" -o \
    "lowerdir=$containers_dir/trial/lower,upperdir=$containers_dir/trial/upper,workdir=$containers_dir/trial/work" 2>/dev/null; then
    umount "$containers_dir/trial/merged"
  else
    driver=vfs
  fi
  rm -rf "$containers_dir/trial"
  export CONTAINERS_CONF=$containers_dir/containers.conf CONTAINERS_STORAGE_CONF=$containers_dir/storage.conf
  printf '[storage]\ndriver = "%s"\ngraphroot = "%s"\nrunroot = "%s"\n' \
    "$driver" "$containers_dir/storage" "$containers_run/storage" >"$CONTAINERS_STORAGE_CONF"
  # runc and cgroupfs work without systemd. A container may not raise a limit above
  # that of the shell it is started from.
  cat >"$CONTAINERS_CONF" <<CONF
[containers]
default_ulimits = ["nofile=$(ulimit -Sn):$(ulimit -Hn)", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "$containers_run/libpod"
volume_path = "$containers_dir/volumes"
[network]
network_backend = "netavark"
network_config_dir = "$containers_dir/networks"
CONF
  # Probes are run by the tests: podman's timers are systemd's.
  export DISABLE_HC_SYSTEMD=true
}

# Debian 12 under the name that the Dockerfile asks for: made here by debootstrap,
# with the archives that Docker's own debian:12 names and this machine's way to them.
podman_base_image() {
  if podman image exists docker.io/library/debian:12; then return 0; fi
  local root=$RANKPROBE_ROOT/build/chroot/image
  bare_system image bookworm --include=ca-certificates
  printf 'deb http://deb.debian.org/debian %s main\n' bookworm bookworm-updates >"$root/etc/apt/sources.list"
  echo 'deb http://deb.debian.org/debian-security bookworm-security main' >>"$root/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(http|https|Check-[A-Za-z-]+)[: ]' >"$root/etc/apt/apt.conf.d/90machine" || true
  rm -f "$root/etc/resolv.conf" "$root/etc/hosts" "$root/var/cache/apt/archives/"*.deb
  tar -C "$root" -c . | podman import --change CMD=bash \
    --change ENV=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin - docker.io/library/debian:12
  rm -rf "$root"
}

# The image of the Dockerfile, as `docker build -t rankprobe .` makes it, with this
# machine's compiler cache lent to it: what was compiled here is not compiled again.
podman_build() {
  local cache
  cache=$(ccache --get-config cache_dir 2>/dev/null || ccache -k cache_dir)
  mkdir -p "$cache"
  podman build --network host --volume "$cache:/root/.cache/ccache" -t rankprobe "$RANKPROBE_ROOT"
}
