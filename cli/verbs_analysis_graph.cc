// graph_visualize.
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "analysis/dump_layout.h"
#include "analysis/visualize.h"
#include "cli/analysis_flags.h"
#include "cli/dump_input.h"
#include "cli/verbs.h"
#include "common/clock.h"
#include "common/json_text.h"
#include "common/status_macros.h"

namespace rankprobe {
namespace {

struct GraphFlags {
  std::string target;
  std::string golden;
  std::string output;
  std::string layer_mapping;
  bool has_layer_mapping = false;
  bool overflow_check = false;
  bool fuzzy = false;
  bool tensor_log = false;
  bool progress_log = false;
};

absl::Status GraphVisualize(const Globals& globals, const GraphFlags& flags) {
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  analysis::VisualizeOptions options;
  RP_ASSIGN_OR_RETURN(
      const DumpInput target,
      DumpInput::Open(file_system.get(), globals, flags.target));
  RP_ASSIGN_OR_RETURN(
      const DumpInput golden,
      DumpInput::Open(file_system.get(), globals, flags.golden));
  options.target = target.path();
  options.golden = golden.path();
  options.overflow_check = flags.overflow_check;
  options.fuzzy = flags.fuzzy;
  if (flags.has_layer_mapping) {
    options.layer_mapping =
        flags.layer_mapping.empty() ? "auto" : flags.layer_mapping;
    if (flags.golden.empty()) {
      return absl::InvalidArgumentError(
          "--layer_mapping needs --golden_path (-gp)");
    }
  }
  RP_ASSIGN_OR_RETURN(const std::string output,
                      PrepareOutput(file_system.get(), flags.output));
  const std::string path =
      ResultPath(file_system.get(), output,
                 absl::StrCat(flags.golden.empty() ? "build_" : "compare_",
                              analysis::TimestampText(SystemClock().Now())),
                 ".vis.db");
  RP_ASSIGN_OR_RETURN(const analysis::VisualizeResult result,
                      analysis::Visualize(file_system.get(), options, path,
                                          MakeProgress(globals.json, "ranks")));
  if (globals.json) {
    std::string out = "{\"file\":";
    AppendJsonString(path, &out);
    absl::StrAppend(&out, ",\"nodes\":", result.nodes,
                    ",\"error\":", result.error,
                    ",\"warning\":", result.warning,
                    ",\"unmatched\":", result.unmatched, "}");
    std::printf("%s\n", out.c_str());
    return absl::OkStatus();
  }
  std::printf("%s: %lld nodes", path.c_str(),
              static_cast<long long>(result.nodes));
  if (!flags.golden.empty()) {
    std::printf(", %lld error, %lld warning, %lld unmatched",
                static_cast<long long>(result.error),
                static_cast<long long>(result.warning),
                static_cast<long long>(result.unmatched));
  }
  std::printf("\n");
  for (const std::string& place : result.unpaired) {
    std::printf("%s: not compared, the other side has no such step or rank\n",
                place.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddGraphVerb(CLI::App* app, Globals* globals, Invocation* invocation) {
  CLI::App* const verb = app->add_subcommand(
      "graph_visualize", "the graph database of one dump, or of two compared");
  AddGlobals(verb, globals);
  auto flags = std::make_shared<GraphFlags>();
  verb->add_option("--target_path", flags->target,
                   "-tp: a rank, step or dump directory, or run:NAME[@STEP]")
      ->required();
  verb->add_option("--golden_path", flags->golden,
                   "-gp: the dump to compare with");
  verb->add_option("-o,--output_path", flags->output,
                   "directory for the database")
      ->required();
  CLI::Option* const layers =
      verb->add_option("--layer_mapping", flags->layer_mapping,
                       "-lm [FILE]: match layers of other names")
          ->expected(0, 1);
  verb->add_flag("--overflow_check", flags->overflow_check,
                 "-oc: mark NaN, infinities and jumps");
  verb->add_flag("--fuzzy_match", flags->fuzzy,
                 "-fm: match calls in order, whatever their numbers");
  verb->add_flag("--is_print_compare_log", flags->tensor_log,
                 "-tensor_log: accepted; results are in the database");
  verb->add_flag("--is_print_progress_log", flags->progress_log,
                 "-progress_log: accepted; progress shows on a terminal");
  verb->callback([invocation, flags, layers] {
    flags->has_layer_mapping = layers->count() > 0;
    invocation->run = [flags](const Globals& g, int*) {
      return GraphVisualize(g, *flags);
    };
  });
}

}  // namespace rankprobe
