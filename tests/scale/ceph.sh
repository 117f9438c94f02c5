#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Ceph of one node with an S3 gateway, for tests: loopback only, no systemd, no
# authentication between its daemons, everything below one directory.
#   tests/scale/ceph.sh up DIR     starts it; DIR/env has what a client needs; the disk is RANKPROBE_CEPH_GIB (8)
#   tests/scale/ceph.sh down DIR   ends what `up` started, by its process ids
#   tests/scale/ceph.sh kill DIR rgw|osd     kill -9 of that one
#   tests/scale/ceph.sh again DIR rgw|osd    starts it again, and returns at once
set -euo pipefail
command=${1:?up, down, kill or again} dir=${2:?a directory}

down() {
  [ -f "$dir/pids" ] || return 0
  local pid
  # The gateway first: it would wait for the others.
  for pid in $(tac "$dir/pids" | cut -d' ' -f2); do
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
  done
  rm -f "$dir/pids"
}
with=(--conf "$dir/ceph.conf")
# start NAME PROGRAM ARGUMENT..
start() {
  local name=$1
  shift
  nice -n 10 setsid "$@" >>"$dir/log/$name.out" 2>&1 &
  echo "$name $!" >>"$dir/pids"
}
start_osd() { start osd ceph-osd "${with[@]}" -i 0 -f; }
start_rgw() { start rgw radosgw "${with[@]}" -n client.rgw.a -f --no-mon-config; }
case $command in
  down) down; exit 0 ;;
  kill)
    pid=$(awk -v name="${3:?rgw or osd}" '$1 == name {pid = $2} END {print pid}' "$dir/pids")
    kill -9 "$pid"
    while [ -e "/proc/$pid" ] && ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null; do sleep 0.05; done
    sed -i "/^$3 /d" "$dir/pids"
    exit 0
    ;;
  again) "start_${3:?rgw or osd}"; exit 0 ;;
esac

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
down
rm -rf "${dir:?}"/{mon,osd,rgw,run,log}
mkdir -p "$dir"/{mon,osd,rgw,run,log}
mon=$(free_port) gateway=$(free_port) fsid=$(cat /proc/sys/kernel/random/uuid)
# One copy of everything, in few placement groups, without a check of who asks:
# this holds for the length of a test. The gateway asks for encryption by itself,
# which there is none of without authentication: clients are told "crc".
{
  echo "[global]"
  echo "fsid = $fsid"
  echo "mon_host = v2:127.0.0.1:$mon"
  echo "mon_initial_members = a"
  for who in public cluster; do echo "${who}_network = 127.0.0.0/8"; done
  echo "ms_bind_ipv6 = false"
  echo "ms_bind_msgr1 = false"
  for what in cluster service client; do echo "auth_${what}_required = none"; done
  for what in ms_client ms_cluster ms_service ms_mon_cluster; do echo "${what}_mode = crc"; done
  for what in ms_mon_client ms_mon_service; do echo "${what}_mode = crc secure"; done
  echo "mon_allow_pool_size_one = true"
  for what in size min_size pg_num pgp_num; do echo "osd_pool_default_$what = 1"; done
  echo "osd_pool_default_pg_autoscale_mode = off"
  echo "mon_max_pg_per_osd = 5000"
  echo "osd_crush_chooseleaf_type = 0"
  echo "mon_data_avail_crit = 1"
  echo "osd_class_load_list = *"
  echo "osd_class_default_list = *"
  echo "run_dir = $dir/run"
  echo "crash_dir = $dir/run"
  echo "admin_socket = $dir/run/\$name.\$pid.asok"
  echo "log_file = $dir/log/\$name.log"
  echo "mon_cluster_log_file = $dir/log/cluster.log"
  echo "mon_data = $dir/mon"
  echo "osd_data = $dir/osd"
  echo "osd_objectstore = bluestore"
  echo "bluestore_block_size = $((${RANKPROBE_CEPH_GIB:-8} << 30))"
  echo "osd_memory_target = $((896 << 20))"
  echo "rgw_data = $dir/rgw"
  echo "rgw_frontends = beast endpoint=127.0.0.1:$gateway"
  echo "rgw_thread_pool_size = 32"
} >"$dir/ceph.conf"
: >"$dir/pids"
# until_true SECONDS COMMAND..
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$end" ]; then
      echo "ceph.sh: not ready: $* (see $dir/log)" >&2
      down
      exit 1
    fi
    sleep 0.2
  done
}

monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon]" "$dir/monmap" >/dev/null
ceph-mon "${with[@]}" -i a --mkfs --monmap "$dir/monmap"
start mon ceph-mon "${with[@]}" -i a -f
until_true 60 timeout 5 ceph "${with[@]}" --connect-timeout 3 -s
uuid=$(cat /proc/sys/kernel/random/uuid)
ceph "${with[@]}" osd new "$uuid" >/dev/null
ceph-osd "${with[@]}" -i 0 --mkfs --osd-uuid "$uuid" >"$dir/log/osd-mkfs.out" 2>&1
start_osd
until_true 60 bash -c "ceph --conf '$dir/ceph.conf' osd stat 2>/dev/null | grep -q '1 up'"
start_rgw
until_true 120 bash -c "exec 3<>/dev/tcp/127.0.0.1/$gateway"
radosgw-admin "${with[@]}" user create --uid=rankprobe --display-name=rankprobe \
  --access-key=rankprobe --secret-key=rankprobe-secret >"$dir/log/user.json" 2>"$dir/log/user.err"
cat >"$dir/env" <<ENV
export AWS_ACCESS_KEY_ID=rankprobe AWS_SECRET_ACCESS_KEY=rankprobe-secret AWS_DEFAULT_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:$gateway
export RANKPROBE_SCALE_CEPH=$dir
ENV
echo "ceph.sh: ready at http://127.0.0.1:$gateway"
