# SPDX-License-Identifier: Apache-2.0
# The callbacks of rankprobe.integrations in the real trainers, and the numbers of public models against golden files
# (tests/trainers). Packages from PyPI, in build/venv-trainers. Not in the default set, which has the function for
# loops of one's own and the plugin of pytest (tests/python/test_loops.py, test_golden.py).
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native)
stage_test() {
  source "$RANKPROBE_ROOT/tests/lib/venv.sh"
  make_venv "$RANKPROBE_ROOT/build/venv-trainers" torch==2.13.0 numpy pandas pytest transformers==5.23.0 accelerate==1.15.0 \
    lightning==2.6.6 trl==1.16.0 deepspeed==0.19.8 megatron-core==0.16.1 tabulate requests
  # torchtitan and verl are in an environment of their own, because verl requires an older transformers. verl is installed without the
  # packages that a CPU does not need, and torchtitan imports triton.
  local rl=$RANKPROBE_ROOT/build/venv-torchtitan
  make_venv "$rl" torch==2.13.0 numpy pytest torchtitan==0.3.0 triton==3.9.0 transformers==5.10.4 accelerate codetiming dill hydra-core peft \
    pylatexenc tensordict==0.10.0 'ray[default]==2.60.0'
  "$rl/bin/python" -c 'import verl' 2>/dev/null || "$rl/bin/python" -m pip install -q --no-deps verl==0.9.1
  # An older transformers, for an upgrade: laid over the environment by a folder of its own.
  local old=$RANKPROBE_ROOT/build/transformers-4.48.3
  [ -d "$old" ] || {
    rm -rf "$old.part"
    "$RANKPROBE_ROOT/build/venv-trainers/bin/python" -m pip install -q --no-deps --target "$old.part" transformers==4.48.3 \
      huggingface-hub==0.36.2 tokenizers==0.21.4 && mv "$old.part" "$old"
  }
  local tests=$RANKPROBE_ROOT/tests/trainers
  local -x PYTHONPATH=$RANKPROBE_BUILD_DIR/python
  run_pytest "$RANKPROBE_ROOT/build/venv-trainers/bin/python" "$tests" "--ignore=$tests/test_torchtitan.py" "--ignore=$tests/test_verl.py"
  run_pytest "$rl/bin/python" "$tests/test_torchtitan.py" "$tests/test_verl.py"
}
