#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that need no build: format, include graph, complexity, shellcheck, ruff, mypy, tsc, eslint and the unit tests of the page's logic.
#   tests/lib/gates.sh [GATE..]
# A gate that was clean is not run again before a file of its changes; what they know of earlier runs and their tools lie in
# ${XDG_CACHE_HOME:-~/.cache}/rankprobe. mypy reads the types of the tests' PyTorch,
# or of the one of the interpreter RANKPROBE_TORCH_PYTHON.
# Exit status 1: findings, each after the name of its gate.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib/common.sh"
source "$RANKPROBE_ROOT/tests/lib/venv.sh"
cd "$RANKPROBE_ROOT"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rankprobe
known=$cache/gates
tools= torch_python=${RANKPROBE_TORCH_PYTHON:-} node_modules=
mkdir -p "$known"

# files_of GATE: what it reads, its settings among them.
files_of() {
  case $1 in
    format) files '*.cc' '*.h' .clang-format ;;
    graph) files '*.cc' '*.h' docs/design.md tests/lib/include_graph.py ;;
    complexity) files '*.cc' '*.h' tests/lib/complexity.py tests/lib/complexity.tsv ;;
    shell) files '*.sh' '*.postinst' '*.sbatch' .ci/run .shellcheckrc ;;
    ruff) files '*.py' '*.pyi' ruff.toml ;;
    mypy) files 'agent/python/*.py' 'agent/python/*.pyi' agent/python/pyproject.toml ;;
    tsc | eslint | page) files web/app web/tests web/package-lock.json web/eslint.config.mjs ;;
  esac
}

# files PATTERN..: those of the working tree that git does not ignore.
files() { git ls-files -co --exclude-standard --deduplicate -- "$@" | while IFS= read -r file; do [ ! -f "$file" ] || echo "$file"; done; }

# By file: a change of one does not ask for the others again.
run_format() {
  local before=$known/formatted now=$logs/formatted settings
  settings=$( (clang-format --version && cat .clang-format) | sha256sum | cut -c1-16)
  files '*.cc' '*.h' | xargs sha256sum | sed "s/^/$settings /" | sort >"$now"
  touch "$before"
  comm -23 "$now" "$before" | sed 's/^[^ ]* [^ ]*  //' | xargs -r -P 2 -n 50 clang-format --dry-run --Werror
  cp "$now" "$before"
}
run_graph() { python3 tests/lib/include_graph.py; }
run_complexity() { "$tools/python" tests/lib/complexity.py; }
run_shell() { files '*.sh' '*.postinst' '*.sbatch' .ci/run | xargs -P 2 -n 12 shellcheck -S warning; }
run_ruff() { "$tools/ruff" check --cache-dir "$known/ruff" --output-format concise; }
run_mypy() {
  (cd agent/python && "$tools/mypy" --cache-dir "$known/mypy" --python-executable "$torch_python" --no-error-summary)
}
run_tsc() {
  local part
  for part in app tests; do
    "$tools/node" "$node_modules/typescript/bin/tsc" -p "web/$part" --incremental --tsBuildInfoFile "$known/tsc-$part.json"
  done
}
run_eslint() { (cd web && "$tools/node" "$node_modules/eslint/bin/eslint.js" --cache --cache-location "$known/eslint.json" .); }
# The modules as the page has them, with the packages that are built in.
run_page() {
  esbuild web/tests/*.test.ts --bundle --platform=node --format=esm --tsconfig=web/app/tsconfig.bundle.json \
    --outdir="$logs/page.js" --out-extension:.js=.mjs --log-level=warning
  "$tools/node" --test --import "$PWD/web/tests/browser.mjs" "$logs/page.js/"*.mjs
}

# What a gate's tools are: a result of other tools is none.
key_of() { (echo "$1 $requirements $torch_python" && files_of "$1" | xargs -d '\n' sha256sum) | sha256sum | cut -c1-32; }

gate() {
  local name=$1 key began=$SECONDS
  key=$known/$name-$(key_of "$name")
  [ ! -e "$key" ] || { echo "gate $name: clean, as before" && return; }
  # A shell of its own: in a condition this one would not end at the first command that fails.
  if bash -c "set -euo pipefail; run_$name" >"$logs/$name" 2>&1; then
    rm -f "$known/$name"-*
    touch "$key"
    echo "gate $name: clean ($((SECONDS - began)) s)"
  else
    cat "$logs/$name"
    echo "gate $name: findings"
    return 1
  fi
}

# The tools of the gates that are asked for.
prepare() {
  if [[ " $* " =~ \ (complexity|ruff|mypy|tsc|eslint|page)\  ]]; then
    make_venv "$cache/venv-gates" "${GATES_REQUIREMENTS[@]}"
    tools=$cache/venv-gates/bin
    export PATH=$tools:$PATH
  fi
  if [[ " $* " == *" mypy "* ]]; then
    [ -n "$torch_python" ] || { test_venv && torch_python=$test_python; }
  fi
  if [[ " $* " =~ \ (tsc|eslint|page)\  ]]; then
    node_modules=$cache/node-$(sha256sum web/package-lock.json | cut -c1-16)/node_modules
    if [ ! -e "$node_modules/.installed" ]; then
      mkdir -p "${node_modules%/*}"
      cp web/package.json web/package-lock.json "${node_modules%/*}"
      (cd "${node_modules%/*}" && "$tools/npm" ci --ignore-scripts --no-audit --no-fund --loglevel=error)
      touch "$node_modules/.installed"
    fi
    # Where the sources and their settings look for what they import.
    ln -sfn "$node_modules" web/node_modules
  fi
}

gates=("$@")
# The long ones first.
[ $# -gt 0 ] || gates=(mypy format eslint tsc complexity shell page ruff graph)
prepare "${gates[@]}"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export -f gate key_of files_of files "${gates[@]/#/run_}"
export known logs tools torch_python node_modules requirements="${GATES_REQUIREMENTS[*]}"
printf '%s\n' "${gates[@]}" | xargs -P 2 -I '{}' bash -c 'set -euo pipefail; gate {}' || exit 1
