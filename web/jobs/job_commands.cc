// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/job_commands.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/text/shell_word.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxValueBytes = 4096;
constexpr size_t kMaxFileBytes = 768 << 10;

enum class OptionKind : uint8_t {
  kDump,        // run:NAME[@STEP[/RANK]], or root:PATH
  kDumpPlace,   // the same, by its place on the command line
  kText,        // a value
  kTextPlace,   // a value, by its place
  kValues,      // several values, with commas
  kFlag,        // "true"
  kFile,        // a content, or nothing
  kFlagOrFile,  // a content, or "true"
  kWordOrFile,  // a content, or a word
};

struct JobOption {
  absl::string_view name;
  OptionKind kind = OptionKind::kText;
  bool required = false;
};

using enum OptionKind;

constexpr JobOption kCompare[] = {
    {"target_path", kDump, true},
    {"golden_path", kDump, true},
    {"fuzzy_match", kFlag},
    {"xlsx", kFlag},
    {"diff_analyze", kFlag},
    {"cell_mapping", kFile},
    {"data_mapping", kFile},
    {"api_mapping", kFile},
    {"layer_mapping", kFlagOrFile},
    {"rules", kWordOrFile},
    {"request", kText},
    {"reference_request", kText},
    {"layout", kWordOrFile},
    {"split_batch", kFlag},
};
constexpr JobOption kDivergence[] = {
    {"target", kDumpPlace, true},
    {"reference", kDumpPlace, true},
    {"tolerance", kText},
    {"noise", kDump},
    {"fuzzy_match", kFlag},
    {"api_mapping", kFile},
    {"layer_mapping", kFlagOrFile},
    {"rules", kWordOrFile},
    {"request", kText},
    {"reference_request", kText},
    {"layout", kWordOrFile},
    {"split_batch", kFlag},
    {"live", kFlag},
    {"wait", kText},
};
constexpr JobOption kDiagnose[] = {
    {"input_path", kDump, true},
    {"reference", kDump},
};
constexpr JobOption kOverflow[] = {{"input_path", kDump, true}};
constexpr JobOption kGraph[] = {
    {"target_path", kDump, true},
    {"golden_path", kDump},
    {"layer_mapping", kFlagOrFile},
    {"layout", kWordOrFile},
    {"split_batch", kFlag},
    {"overflow_check", kFlag},
    {"fuzzy_match", kFlag},
    {"is_print_compare_log", kFlag},
    {"rank_size", kValues},
    {"tp", kValues},
    {"pp", kValues},
    {"vpp", kValues},
    {"order", kValues},
    {"file_type", kText},
};
constexpr JobOption kExport[] = {
    {"run", kText, true}, {"steps", kText}, {"ranks", kText},
    {"format", kText},    {"match", kText}, {"of", kText},
    {"request", kText},   {"link", kFlag},
};
constexpr JobOption kConfigCheck[] = {
    {"target", kDumpPlace, true},
    {"reference", kDumpPlace, true},
    {"all", kFlag},
};
constexpr JobOption kReplicas[] = {
    {"dump", kDumpPlace, true},
    {"groups", kText},
    {"gradients", kFlag},
};
constexpr JobOption kScan[] = {
    {"run", kText, true}, {"match", kTextPlace}, {"from-step", kText},
    {"to-step", kText},   {"ranks", kText},      {"window", kText},
    {"factor", kText},    {"limit", kText},
};

struct JobCommandRow {
  absl::string_view name;
  absl::Span<const JobOption> options;
  // The option that selects the output path; empty if the command writes no
  // files.
  absl::string_view output;
  // The command only reads dumps and does not call a collector.
  bool reads_files = false;
  // The command also reads the bytes of tensors.
  bool reads_tensors = false;
};

constexpr absl::string_view kExportName = "export";
constexpr absl::string_view kOverflowName = "overflow_check";
constexpr absl::string_view kGraphName = "graph_visualize";
constexpr JobCommandRow kCommands[] = {
    {"compare", kCompare, "output_path", true, true},
    {"first-divergence", kDivergence, "", true, true},
    {kOverflowName, kOverflow, "output_path", true, false},
    {kGraphName, kGraph, "output_path", true, true},
    {kExportName, kExport, ""},
    {"config_check", kConfigCheck, "", true, false},
    {"replicas", kReplicas, "", true, true},
    {"scan", kScan, ""},
    {"diagnose", kDiagnose, ""},
};

absl::Status CheckValue(absl::string_view option, absl::string_view value) {
  if (value.empty() || value.size() > kMaxValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": expected 1 to ", kMaxValueBytes, " bytes"));
  }
  if (absl::c_any_of(value, [](char c) { return absl::ascii_iscntrl(c); })) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": it has control characters"));
  }
  return absl::OkStatus();
}

constexpr absl::string_view kRun = "run:";
constexpr absl::string_view kRoot = "root:";

class CommandMaker {
 public:
  CommandMaker(const v1::JobSpec& spec, const std::string& directory,
               const JobSources& sources)
      : spec_(spec), directory_(directory), sources_(sources) {}

  absl::StatusOr<JobCommand> Make() {
    const JobCommandRow* const row =
        std::find_if(std::begin(kCommands), std::end(kCommands),
                     [this](const JobCommandRow& one) {
                       return one.name == spec_.command();
                     });
    if (row == std::end(kCommands))
      return absl::InvalidArgumentError("there is no such command for jobs");
    RP_RETURN_IF_ERROR(CheckNames(*row));
    RP_RETURN_IF_ERROR(CheckSource(*row));
    Both(std::string(row->name));
    for (const JobOption& option : row->options)
      RP_RETURN_IF_ERROR(Add(option));
    if (!row->output.empty())
      Own(absl::StrCat("--", row->output, "=", directory_, "/out"));
    if (row->name == kExportName) AddExportPlace();
    Own("--json");
    // After "--" no value is taken for an option.
    if (!places_.empty()) Own("--");
    for (const auto& [value, shown] : places_) {
      Own(value);
      text_.push_back(ShellWord(shown));
    }
    made_.text = absl::StrCat("rankprobe ", absl::StrJoin(text_, " "));
    return std::move(made_);
  }

 private:
  // Returns an error if this server cannot provide the command's input.
  absl::Status CheckSource(const JobCommandRow& row) {
    row_ = &row;
    if (sources_.runs == JobSources::Runs::kAsked) return absl::OkStatus();
    const auto live = spec_.options().find("live");
    if (row.reads_files && live == spec_.options().end())
      return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(row.name, row.reads_files ? " --live" : "",
                     " needs a collector, and jobs of this server have none: "
                     "use the command, "
                     "or `rankprobe view --collector`"));
  }

  // Returns the path that replaces a dump's name. A page may name runs and
  // places below the root; any other path would be one of this machine.
  absl::StatusOr<std::string> DumpOf(absl::string_view option,
                                     const std::string& value) {
    absl::string_view rest = value;
    if (absl::ConsumePrefix(&rest, kRoot) && sources_.below_root) {
      made_.reads_root = true;
      return sources_.below_root(rest);
    }
    if (!absl::ConsumePrefix(&rest, kRun) || rest.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": expected run:NAME or run:NAME@STEP",
                       sources_.below_root ? ", or root:DIRECTORY" : ""));
    }
    if (sources_.runs == JobSources::Runs::kAsked) return value;
    if (sources_.runs == JobSources::Runs::kNone) {
      return absl::FailedPreconditionError(
          absl::StrCat(option, ": ", value,
                       ": rankprobe view has no collector: give --collector"));
    }
    JobDump dump;
    dump.name = value;
    // The form of the temporary names of fetched dumps, which the runner hides.
    dump.path = absl::StrCat(directory_, "/tmp/rankprobe_run",
                             made_.dumps.size(), "/dump");
    dump.directory = directory_;
    dump.payloads =
        row_->reads_tensors &&
        (row_->name != kGraphName || spec_.options().contains("golden_path"));
    dump.rank_directory = row_->name != kOverflowName;
    made_.dumps.push_back(dump);
    return dump.path;
  }

  absl::Status CheckNames(const JobCommandRow& row) const {
    size_t bytes = 0;
    const auto known = [&row](absl::string_view name, bool file) {
      return absl::c_any_of(row.options, [&](const JobOption& option) {
        return option.name == name &&
               (!file || option.kind == kFile || option.kind == kFlagOrFile ||
                option.kind == kWordOrFile);
      });
    };
    for (const auto& [name, value] : spec_.options()) {
      if (!known(name, false)) return NoSuch(row, name);
    }
    for (const auto& [name, content] : spec_.files()) {
      if (!known(name, true)) return NoSuch(row, name);
      bytes += content.size();
    }
    if (bytes > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the files of a job have at most ", kMaxFileBytes >> 10, " KiB"));
    }
    return absl::OkStatus();
  }

  static absl::Status NoSuch(const JobCommandRow& row,
                             absl::string_view option) {
    return absl::InvalidArgumentError(absl::StrCat(
        row.name, " as a job has no option ", option.substr(0, 64)));
  }

  absl::Status Add(const JobOption& option) {
    const auto file = spec_.files().find(std::string(option.name));
    if (file != spec_.files().end()) {
      const std::string path =
          absl::StrCat(directory_, "/in/", option.name, ".yaml");
      made_.inputs.push_back({path, file->second});
      Own(absl::StrCat("--", option.name, "=", path));
      text_.push_back(
          absl::StrCat("--", option.name, "=", option.name, ".yaml"));
      return absl::OkStatus();
    }
    const auto found = spec_.options().find(std::string(option.name));
    if (found == spec_.options().end()) {
      if (!option.required) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat(spec_.command(), " needs ", option.name));
    }
    const std::string& value = found->second;
    RP_RETURN_IF_ERROR(CheckValue(option.name, value));
    return AddValue(option, value);
  }

  absl::Status AddValue(const JobOption& option, const std::string& value) {
    switch (option.kind) {
      case kDump:
      case kDumpPlace:
        return AddDump(option, value);
      case kFlag:
      case kFlagOrFile:
        if (value != "true") {
          return absl::InvalidArgumentError(
              absl::StrCat(option.name, ": expected true"));
        }
        Both(absl::StrCat("--", option.name));
        return absl::OkStatus();
      case kFile:
        return absl::InvalidArgumentError(
            absl::StrCat(option.name, ": expected the content of a file"));
      case kWordOrFile:
        // Any other text would be a path of this machine.
        if (absl::StrContains(value, '/') || absl::StrContains(value, '.')) {
          return absl::InvalidArgumentError(absl::StrCat(
              option.name, ": expected a word, or the content of a file"));
        }
        break;
      case kValues:
        for (const absl::string_view one : absl::StrSplit(value, ',')) {
          RP_RETURN_IF_ERROR(CheckValue(option.name, one));
          Both(absl::StrCat("--", option.name, "=", one));
        }
        return absl::OkStatus();
      case kText:
      case kTextPlace:
        break;
    }
    if (option.kind == kDumpPlace || option.kind == kTextPlace) {
      places_.emplace_back(value, value);
    } else {
      Both(absl::StrCat("--", option.name, "=", value));
    }
    return absl::OkStatus();
  }

  absl::Status AddDump(const JobOption& option, const std::string& value) {
    RP_ASSIGN_OR_RETURN(const std::string dump, DumpOf(option.name, value));
    // For the root, people are shown the directory, too.
    const std::string& shown =
        made_.dumps.empty() || made_.dumps.back().path != dump ? dump : value;
    if (option.kind == kDumpPlace) {
      places_.emplace_back(dump, shown);
    } else {
      Own(absl::StrCat("--", option.name, "=", dump));
      text_.push_back(ShellWord(absl::StrCat("--", option.name, "=", shown)));
    }
    return absl::OkStatus();
  }

  // The page chooses the format, the server the path.
  void AddExportPlace() {
    const auto found = spec_.options().find("format");
    const std::string format =
        found == spec_.options().end() ? "msprobe" : found->second;
    const std::string out = directory_ + "/out";
    const auto place = [&](absl::string_view option, absl::string_view name) {
      Own(absl::StrCat("--", option, "=", out, name.empty() ? "" : "/", name));
      text_.push_back(
          absl::StrCat("--", option, "=", name.empty() ? "out" : name));
    };
    if (format == "msprobe") {
      place("tar", "dump.tar");
    } else if (format == "parquet") {
      place("output", "values.parquet");
    } else if (format == "trend") {
      place("output", "trend.db");
    } else {
      place("output", "");
    }
  }

  void Own(std::string argument) {
    made_.arguments.push_back(std::move(argument));
  }
  void Both(std::string argument) {
    text_.push_back(ShellWord(argument));
    made_.arguments.push_back(std::move(argument));
  }

  const v1::JobSpec& spec_;
  const std::string& directory_;
  const JobSources& sources_;
  const JobCommandRow* row_ = nullptr;
  JobCommand made_;
  std::vector<std::string> text_;
  // Each positional argument, and its text for people.
  std::vector<std::pair<std::string, std::string>> places_;
};

}  // namespace

absl::StatusOr<JobCommand> ToCommand(const v1::JobSpec& spec,
                                     const std::string& directory,
                                     const JobSources& sources) {
  return CommandMaker(spec, directory, sources).Make();
}

}  // namespace rankprobe
