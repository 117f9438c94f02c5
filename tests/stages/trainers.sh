# SPDX-License-Identifier: Apache-2.0
# The callbacks of rankprobe.integrations in the real trainers, and the numbers of public models against golden files
# (tests/trainers). Packages from PyPI, in build/venv-trainers. Not in the default set, which has the function for
# loops of one's own and the plugin of pytest (tests/python/test_loops.py, test_golden.py).
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native)
stage_test() {
  source "$RANKPROBE_ROOT/tests/lib/venv.sh"
  make_venv "$RANKPROBE_ROOT/build/venv-trainers" torch==2.13.0 numpy pandas pytest transformers==5.23.0 accelerate==1.15.0 \
    lightning==2.6.6 trl==1.16.0 deepspeed==0.19.8 megatron-core==0.16.1 tabulate requests
  # An older transformers, for an upgrade: laid over the environment by a folder of its own.
  local old=$RANKPROBE_ROOT/build/transformers-4.48.3
  [ -d "$old" ] || {
    rm -rf "$old.part"
    "$RANKPROBE_ROOT/build/venv-trainers/bin/python" -m pip install -q --no-deps --target "$old.part" transformers==4.48.3 \
      huggingface-hub==0.36.2 tokenizers==0.21.4 && mv "$old.part" "$old"
  }
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$RANKPROBE_ROOT/build/venv-trainers/bin/python" "$RANKPROBE_ROOT/tests/trainers"
}
