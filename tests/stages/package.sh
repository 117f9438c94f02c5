# SPDX-License-Identifier: Apache-2.0
# The wheel: built in a clone in a bare Debian 12, looked into, beside others'
# libraries, and in bare systems that have none of the packages it was built with.
# Debian packages: lintian, installed, run and removed in a bare system. Not part of the default run:
# it compiles the extensions for each interpreter, and needs root, network and
# some 10 GB. A part that takes more than RANKPROBE_CASE_SECONDS (3600) has failed.
# RANKPROBE_WHEEL_PYTHONS: interpreters to build for (python3.11); those of
# 3.10 to 3.13 that pyenv has are added.
stage_test() {
  source "$RANKPROBE_ROOT/tests/package/chroot.sh"
  source "$RANKPROBE_ROOT/tests/package/clone_system.sh"
  source "$RANKPROBE_ROOT/tests/package/cases.sh"
  source "$RANKPROBE_ROOT/tests/package/debian_case.sh"
  source "$RANKPROBE_ROOT/packaging/wheel/tools.sh"
  install_packages "$RANKPROBE_ROOT/packaging/packages.txt"
  read -r -a wheel_pythons <<<"${RANKPROBE_WHEEL_PYTHONS:-python3.11}"
  shopt -s nullglob
  for python in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[023].*/bin/python3.1[023]; do
    [ -n "${RANKPROBE_WHEEL_PYTHONS:-}" ] || wheel_pythons+=("$python")
  done
  shopt -u nullglob
  wheels=$RANKPROBE_ROOT/build/wheel/dist

  # Debian's own Python is that of a bare system, in which nothing but a clone is.
  # For others the libraries and programs come from the compiler's cache; an
  # extension is compiled for its own.
  wheel_for() {
    if [ "$1" != python3.11 ]; then
      "$RANKPROBE_ROOT/packaging/wheel/build.sh" "$1"
      return
    fi
    clone_into wheel && in_clone wheel / /root/rankprobe/packaging/wheel/build.sh "$1" && mkdir -p "$wheels" &&
      cp "$RANKPROBE_ROOT/build/chroot/wheel/root/rankprobe/build/wheel/dist/"*.whl "$wheels/"
  }
  # wheel_beside PYTHON VERSION: installed with the libraries that it must live with.
  wheel_beside() {
    RANKPROBE_PYTHON=$1 wheel_tools "$RANKPROBE_ROOT/build/wheel/test$2" grpcio protobuf onnx numpy
    "$RANKPROBE_ROOT/build/wheel/test$2/bin/python" -m pip install -q --no-input --no-deps --force-reinstall "$wheels/"*"-cp$2-"*.whl
  }
  for python in "${wheel_pythons[@]}"; do
    version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
    rm -f "$wheels/"*"-cp$version-"*.whl
    test_case "wheel for Python ${version/3/3.}" wheel_for "$python"
    # Without a wheel the tests below would be skipped; the case above has failed.
    for wheel in "$wheels/"*"-cp$version-"*.whl; do
      [ -f "$wheel" ] || continue
      test_case "it installs beside others' libraries" wheel_beside "$python" "$version"
      RANKPROBE_WHEEL=$wheel RANKPROBE_WHEEL_PYTHON=$RANKPROBE_ROOT/build/wheel/test$version/bin/python \
        part "the wheel for Python ${version/3/3.} looked into" \
        run_pytest /usr/bin/python3 "$RANKPROBE_ROOT/tests/package/test_wheel.py"
    done
  done

  # wheel_into NAME PIP_REQUIREMENT..: a virtual environment with the wheel and these.
  wheel_into() {
    local name=$1 root=$RANKPROBE_ROOT/build/chroot/$1
    shift
    mkdir -p "$root/wheels"
    cp "$wheels/"*.whl "$root/wheels/"
    cp "$RANKPROBE_ROOT/tests/package/"{readme_example,wheel_alone}.py "$root/"
    if [ -d /opt/wheels ]; then cp /opt/wheels/*.whl "$root/wheels/"; fi
    in_system "$name" python3 -m venv --system-site-packages /venv
    in_system "$name" env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
      /venv/bin/python -m pip install -q --no-input --find-links /wheels rankprobe "$@"
  }
  bare_bookworm() {
    bare_system bookworm bookworm --include=python3,python3-venv,ca-certificates
    local began=$SECONDS root=$RANKPROBE_ROOT/build/chroot/bookworm
    wheel_into bookworm torch==2.13.0 numpy
    echo "venv, wheel and PyTorch installed after $((SECONDS - began)) s"
    cp "$RANKPROBE_ROOT/README.md" "$RANKPROBE_ROOT/tests/lib/walkthrough.py" "$root/"
    in_system bookworm sh -c 'mkdir /tmp/try && cd /tmp/try && PATH=/venv/bin:$PATH exec /venv/bin/python /walkthrough.py /README.md'
    # Five minutes are the aim; how long it takes is the machine's too, so it is said and not asserted.
    echo "README typed after $((SECONDS - began)) s, load $(cut -d ' ' -f 1-3 /proc/loadavg) on $(nproc) cores"
  }
  # Python 3.13, glibc 2.41, and Debian's PyTorch, which brings its own protobuf.
  bare_trixie() {
    bare_system trixie trixie --include=python3,python3-venv,ca-certificates
    in_system trixie env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-torch \
      >"$RANKPROBE_ROOT/build/chroot/trixie.log" 2>&1 &&
      wheel_into trixie && in_system trixie /venv/bin/python /readme_example.py
  }
  # glibc 2.31, the oldest that Debian's mirrors still have. Its Python is 3.9, too
  # old for the package, so the programs run and the extensions load.
  bare_bullseye() {
    bare_system bullseye bullseye --include=python3
    local root=$RANKPROBE_ROOT/build/chroot/bullseye
    mkdir -p "$root/wheel"
    /usr/bin/python3 -m zipfile -e "$wheels/"*-cp310-*.whl "$root/wheel" 2>/dev/null ||
      /usr/bin/python3 -m zipfile -e "$(printf '%s\n' "$wheels/"*.whl | head -1)" "$root/wheel"
    cp "$RANKPROBE_ROOT/tests/package/wheel_alone.py" "$root/"
    in_system bullseye python3 /wheel_alone.py /wheel
  }
  test_case "README typed in a bare bookworm (PyTorch 2.13)" bare_bookworm
  test_case "the loop in a bare trixie (Debian's PyTorch)" bare_trixie
  test_case "programs and extensions on glibc 2.31" bare_bullseye
  test_case "Debian packages build" "$RANKPROBE_ROOT/packaging/debian/build.sh"
  test_case "lintian finds nothing in them" debian_lintian
  test_case "Debian packages: installed, run, removed" debian_packages_live
  parts_print
  ls -l "$wheels" "$RANKPROBE_ROOT/build/debian/"*.deb || true
}
