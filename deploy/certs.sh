#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Certificates and tokens of one collector and its clients:
#   deploy/certs.sh DIRECTORY [HOST_OR_IP..]
# makes in DIRECTORY
#   ca.pem                      signs all below (ca.key: keep it offline)
#   server.pem server.key       the collector, for localhost, 127.0.0.1, ::1 and the names given
#   agent.pem  operator.pem  viewer.pem  leaf.pem   clients, with their .key; the URI in each names its role
#   tokens                      for rankprobed --token-file
#   agent.token operator.token viewer.token leaf.token   one token each, for RANKPROBE_TOKEN_FILE and --root-token-file
set -euo pipefail
umask 077
[ $# -ge 1 ] || { sed -n '3,10p' "${BASH_SOURCE[0]}" >&2; exit 2; }
dir=$1
shift
mkdir -p "$dir"
cd "$dir"

names=DNS:localhost,IP:127.0.0.1,IP:::1
for name in "$@"; do
  if [[ $name =~ ^[0-9.]+$ || $name == *:* ]]; then names+=,IP:$name; else names+=,DNS:$name; fi
done

key() { openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1"; }

# sign NAME SUBJECT_ALT_NAME USAGE
sign() {
  key "$1.key"
  openssl req -new -key "$1.key" -subj "/O=rankprobe/CN=$1" -out "$1.csr"
  printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=%s\nsubjectAltName=%s\n' "$3" "$2" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -sha256 -days 825 \
    -extfile "$1.ext" -out "$1.pem" 2>/dev/null
  rm "$1.csr" "$1.ext"
}

key ca.key
openssl req -new -x509 -key ca.key -sha256 -days 3650 -subj "/O=rankprobe/CN=rankprobe CA" \
  -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.pem
sign server "$names" serverAuth
for role in agent operator viewer leaf; do sign "$role" "URI:rankprobe:$role" clientAuth; done

: >tokens
for role in agent operator viewer leaf; do
  token=$(openssl rand -hex 24)
  echo "$token" >"$role.token"
  echo "$role $role-1 $token" >>tokens
done
echo "certificates and tokens are in $dir"
