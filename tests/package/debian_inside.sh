# SPDX-License-Identifier: Apache-2.0
# Inside the bare system: what the packages put there works, and goes with them.
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends /rankprobe_*.deb /python3-rankprobe_*.deb python3-numpy >/install.log 2>&1 ||
  { tail -20 /install.log; exit 1; }
getent passwd rankprobe >/dev/null
test -f /lib/systemd/system/rankprobed.service -o -f /usr/lib/systemd/system/rankprobed.service
for page in /usr/share/man/man1/rankprobe.1.gz /usr/share/man/man*/rankprobed.*.gz; do test -f "$page"; done
# As the unit starts it.
grep -q '^ExecStart=/usr/bin/rankprobed --config /etc/rankprobe/rankprobed.json' /usr/lib/systemd/system/rankprobed.service \
  /lib/systemd/system/rankprobed.service 2>/dev/null
install -d -o rankprobe -g rankprobe -m 0750 /var/lib/rankprobe
setpriv --reuid=rankprobe --regid=rankprobe --clear-groups \
  rankprobed --config /etc/rankprobe/rankprobed.json --data-dir /var/lib/rankprobe &
collector=$!
for _ in $(seq 300); do rankprobe runs >/dev/null 2>&1 && break; sleep 0.2; done
python3 - <<'PYTHON'
import numpy, rankprobe, rankprobe.analysis
session = rankprobe.Session("127.0.0.1:7411", run="r", rank=0,
                            config_json='{"task": "statistics", "level": "L1", "rank": [], "step": [], "dump_path": "d"}')
session.wait_connected(60)
session.start()
session.call("Torch", "add", [numpy.ones(3, numpy.float32)], [])
session.stop()
session.step()
session.close()
PYTHON
rankprobe export --run r -o /dump
grep -q Torch.add.0.forward /dump/step0/rank0/dump.json
kill -TERM "$collector"
wait "$collector"
apt-get purge -y -qq rankprobe python3-rankprobe >/purge.log 2>&1
for gone in /usr/bin/rankprobe /usr/bin/rankprobed /usr/lib/python3/dist-packages/rankprobe /etc/rankprobe; do
  if [ -e "$gone" ]; then echo "purge left $gone"; exit 1; fi
done
# The archive is its owner's.
test -d /var/lib/rankprobe
echo "installed, ran, removed"
