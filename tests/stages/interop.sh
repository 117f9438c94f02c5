# The Python front end beside the real msprobe, entry by entry. Both live in
# build/venv-interop; the package of rankprobe comes from the build tree.
source "$RANKPROBE_ROOT/tests/lib/venv.sh"
make_venv "$RANKPROBE_ROOT/build/venv-interop" torch==2.13.0 numpy pandas openpyxl tqdm rich pytest mindstudio-probe==26.2.0 tb-graph-ascend==8.3.2
build
PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
  run_pytest "$RANKPROBE_ROOT/build/venv-interop/bin/python" "$RANKPROBE_ROOT/tests/interop"
