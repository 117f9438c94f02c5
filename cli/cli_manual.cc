// SPDX-License-Identifier: Apache-2.0
#include "cli/cli_manual.h"

namespace rankprobe {

const char* CliDescription() {
  return "shows what every tensor did, on every rank, at any step of a PyTorch "
         "job";
}

Manual CliManual() {
  Manual manual;
  manual.section = 1;
  manual.description =
      "Agents inside the ranks of a training job stream tensor statistics and "
      "tensors to a collector, rankprobed(8).\n"
      "rankprobe switches that recording on and off, watches it, takes data "
      "out of the archive, and says where two dumps differ or where a NaN "
      "came from.\n"
      "\n"
      "The commands that find what is wrong read a dump directory, written by "
      "rankprobe or by msprobe, or a run in the archive, run:NAME or "
      "run:NAME@STEP.\n"
      "They need no collector for a directory.\n"
      "\n"
      "With --json a command prints one line of JSON on standard output; its "
      "names are those of the .proto files.";
  manual.purposes = {
      {"Attach a job", {"run", "doctor"}},
      {"Switch recording", {"enable", "disable", "config", "explain"}},
      {"Watch",
       {"status", "top", "view", "watch", "events", "triggers", "flight"}},
      {"Take data out", {"runs", "query", "export", "ledger"}},
      {"Find what is wrong",
       {"diagnose", "scan", "overflow_check", "first-divergence",
        "config_check", "compare", "merge_result", "graph_visualize",
        "replicas", "align", "acc_check"}},
      {"Keep the archive",
       {"verify", "delete", "backup", "reindex", "deliver"}},
  };
  manual.examples = {
      {"run", {"rankprobe run -- torchrun --nproc-per-node 2 train.py"}},
      {"doctor", {"rankprobe doctor", "rankprobe doctor --config config.json"}},
      {"enable",
       {"rankprobe enable --for-steps 3",
        "rankprobe enable --run live --request slow-1 --for-steps 20",
        "rankprobe enable --run train --ranks 0,2-3 --config tensors.json"}},
      {"config schema",
       {"rankprobe config schema > config.schema.json",
        "rankprobe config schema --markdown"}},
      {"explain",
       {"rankprobe explain --run train --rank 0 --call linear",
        "rankprobe explain --run train --config tensors.json"}},
      {"triggers set", {"rankprobe triggers set --run train nan.json"}},
      {"view",
       {"rankprobe view --collector node0:7411 --token-file token",
        "rankprobe view --root dumps", "rankprobe view --port 8080 --no-open"}},
      {"watch", {"rankprobe watch --json"}},
      {"export",
       {"rankprobe export --run train -o dump",
        "rankprobe export --run train --steps 0,4-6 --tar - | tar -t",
        "rankprobe export --run live --request slow-1 -o dump",
        "rankprobe export --run train --format parquet -o train.parquet"}},
      {"query",
       {"rankprobe query --run train '*.parameters_grad.*'",
        "rankprobe query --run train --rows rank --heat",
        "rankprobe query --run train --rows rank --statistic max --csv"}},
      {"diagnose",
       {"rankprobe diagnose run:train",
        "rankprobe diagnose dump/step5 good/step5"}},
      {"scan",
       {"rankprobe scan --run train",
        "rankprobe scan --run train --from-step 8000 '*.parameters_grad.*'"}},
      {"ledger", {"rankprobe ledger --run train --counts"}},
      {"overflow_check", {"rankprobe overflow_check dump/step5 -o report"}},
      {"first-divergence",
       {"rankprobe first-divergence dump reference",
        "rankprobe first-divergence run:new run:old",
        "rankprobe first-divergence served reference --rules vllm-llama"}},
      {"config_check",
       {"rankprobe config_check dump reference",
        "rankprobe config_check run:new run:old --all",
        "rankprobe config_check -d train.sh model.yaml -o new.zip"}},
      {"compare", {"rankprobe compare dump reference -o result -da"}},
      {"merge_result",
       {"rankprobe merge_result result -o merged -config merge.yaml"}},
      {"graph_visualize",
       {"rankprobe graph_visualize dump -o graph",
        "rankprobe graph_visualize dump reference -o graph -oc"}},
      {"replicas", {"rankprobe replicas dump/step5"}},
      {"align",
       {"rankprobe align served reference --rules vllm-llama -o aligned"}},
      {"acc_check",
       {"rankprobe acc_check dump/step5/rank0/dump.json -o check"}},
      {"verify", {"rankprobe verify --read-data --subset 10%"}},
      {"delete", {"rankprobe delete --run train --steps 0-99"}},
      {"deliver", {"rankprobe deliver /var/spool/rankprobe"}},
  };
  manual.values = {
      {"--run", "NAME"},
      {"--ranks", "RANKS"},
      {"--steps", "STEPS"},
      {"--config", "FILE"},
      {"--api-list", "FILE"},
      {"--rank", "RANK"},
      {"--step", "STEP"},
      {"--at-step", "STEP"},
      {"--for-steps", "N"},
      {"--from-step", "STEP"},
      {"--to-step", "STEP"},
      {"--rows", "value|call|module|rank"},
      {"--of", "outputs|inputs|all"},
      {"--match", "PATTERN"},
      {"--format", "msprobe|parquet|tensorboard|trend|columns"},
      {"--statistic", "NAME"},
      {"--reduce", "max|min|mean"},
      {"--port", "PORT"},
      {"--wait", "SECONDS"},
      {"--interval", "SECONDS"},
      {"--epoch", "N"},
      {"--call", "TEXT"},
      {"--max-calls", "N"},
      {"--limit", "N"},
      {"--rounds", "N"},
      {"--output", "DIR"},
      {"--payloads", "DUMP"},
      {"--server-dir", "DIR"},
      {"--tar", "FILE"},
      {"--subset", "PERCENT"},
      {"--output_path", "DIR"},
      {"--input_path", "PATH"},
      {"--output_dir", "DIR"},
      {"--config-path", "FILE"},
      {"--cell_mapping", "FILE"},
      {"--data_mapping", "FILE"},
      {"--api_mapping", "FILE"},
      {"--rank_size", "N"},
      {"--tp", "N"},
      {"--pp", "N"},
      {"--vpp", "N"},
      {"--noise", "DUMP"},
      {"--rules", "FILE|NAME"},
      {"--layout", "auto|FILE|ranks"},
      {"--request", "ID"},
      {"--reference_request", "ID"},
      {"--groups", "GROUPS"},
      {"--order", "DIMENSIONS"},
      {"--window", "STEPS"},
      {"--factor", "NUMBER"},
      {"--tolerance", "auto|NUMBER"},
  };
  manual.worker_flags = {
      {"run",
       {{{"--run"},
         "NAME",
         {},
         "name of the run; else RANKPROBE_RUN, else torchrun's"},
        {{"--config"},
         "FILE",
         {},
         "config.json; else statistics of level mix into ./dump_path"},
        {{"--on"}, "", {}, "record from the first step on"},
        {{"--monitor"},
         "",
         {},
         "record from the first step on what a long training is watched by"},
        {{"--every"}, "STEPS", {}, "with --monitor: interval in steps"},
        {{"--on-collector-missing"},
         "WHAT",
         {"fail", "spool", "ignore"},
         "no collector answers: end the program, keep what is recorded in "
         "RANKPROBE_SPOOL, or record nothing"},
        {{"--as-msprobe"},
         "",
         {},
         "the program makes msprobe's PrecisionDebugger itself"}}},
      {"doctor",
       {{{"--config"}, "FILE", {}, "config.json; else RANKPROBE_CONFIG"},
        {{"--dump-path"},
         "DIR",
         {},
         "directory of the dump; else that of config.json, else "
         "./dump_path"}}},
      {"acc_check",
       {{{"-api_info", "--api_info_file"},
         "DUMP_JSON",
         {},
         "the calls: a dump.json, or run:NAME[@STEP]"},
        {{"--compare"},
         "DETAILS",
         {},
         "two details files, of the device and of the reference; runs nothing"},
        {{"-o", "--out_path"},
         "DIR",
         {},
         "directory of the results (./output)"},
        {{"-csv_path", "--result_csv_path"},
         "FILE",
         {},
         "a result csv to go on with"},
        {{"-save_error_data"}, "", {}, "save the tensors of calls that fail"},
        {{"-f", "--filter_api"}, "", {}, "one call for each op and signature"},
        {{"-config", "--config_path"},
         "FILE",
         {},
         "a config.json with an acc_check section"},
        {{"--white_list"},
         "NAMES",
         {},
         "only these APIs; with a black list, those of them not in it"},
        {{"--black_list"}, "NAMES", {}, "not these APIs"},
        {{"--error_data_path"},
         "DIR",
         {},
         "an existing directory for what -save_error_data saves"},
        {{"--force"},
         "",
         {},
         "read what the permission rule refuses, with a warning"},
        {{"--seed"}, "N", {}, "of the values that are made up (0)"}}},
  };
  manual.exit_codes = {
      {"0", "done"},
      {"1",
       "partly: a rank did not follow, an export has gaps, two dumps differ or "
       "not all of them was seen"},
      {"2", "bad usage or config"},
      {"3", "no collector there"},
      {"4", "not found"},
      {"5", "refused"},
  };
  manual.environment = {
      {"RANKPROBE_COLLECTOR",
       "HOST:PORT or unix:PATH of the collector, for --collector."},
      {"RANKPROBE_TLS_CA, RANKPROBE_TLS_CERT, RANKPROBE_TLS_KEY, "
       "RANKPROBE_TLS_SERVER_NAME, RANKPROBE_TOKEN_FILE",
       "For the flags of these names."},
      {"RANKPROBE_PYTHON",
       "The Python that runs acc_check, run and doctor (with torch), export "
       "--format "
       "(with pyarrow) and config_check -d; else python3."},
  };
  manual.see_also = {"rankprobed(8)", "README.md and docs/ of the project"};
  return manual;
}

}  // namespace rankprobe
