// SPDX-License-Identifier: Apache-2.0
#include "analysis/merge_result/merge_config.h"

#include <re2/re2.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "dump_format/input_files.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kMaxNames = 4096;

// `key`'s list of names, each once.
absl::StatusOr<std::vector<std::string>> Names(const YAML::Node& list,
                                               absl::string_view key) {
  std::vector<std::string> out;
  if (!list.IsSequence() || list.size() > kMaxNames) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", key, "` is a list of at most 4096 names"));
  }
  for (const YAML::Node& item : list) {
    if (!item.IsScalar() || item.Scalar().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", key, "` is a list of names"));
    }
    if (std::find(out.begin(), out.end(), item.Scalar()) == out.end()) {
      out.push_back(item.Scalar());
    }
  }
  return out;
}

absl::StatusOr<MergeConfig> Parse(const std::string& text) {
  const YAML::Node root = YAML::Load(text);
  if (!root.IsMap()) {
    return absl::InvalidArgumentError("expected `api: [..]`");
  }
  MergeConfig config;
  const YAML::Node apis = root["api"];
  if (!apis || apis.IsNull() || (apis.IsSequence() && apis.size() == 0)) {
    return absl::InvalidArgumentError(
        "no `api`: name the APIs whose rows are merged");
  }
  RP_ASSIGN_OR_RETURN(config.apis, Names(apis, "api"));
  const YAML::Node indices = root["compare_index"];
  if (indices && !indices.IsNull()) {
    RP_ASSIGN_OR_RETURN(config.indices, Names(indices, "compare_index"));
  }
  return config;
}

}  // namespace

absl::StatusOr<MergeConfig> ReadMergeConfig(FileSystem* file_system,
                                            const std::string& path) {
  RP_ASSIGN_OR_RETURN(const std::string text, ReadInput(file_system, path));
  absl::StatusOr<MergeConfig> config = absl::InvalidArgumentError("");
  try {
    config = Parse(text);
  } catch (const YAML::Exception& fault) {
    config = absl::InvalidArgumentError(
        absl::StrReplaceAll(fault.what(), {{"\n", " "}}));
  }
  if (!config.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", config.status().message()));
  }
  return config;
}

absl::StatusOr<ApiPattern> ApiPattern::Make(const std::string& api) {
  ApiPattern pattern;
  pattern.api_ = api;
  pattern.text_ = absl::StrCat(api, ".");
  if (api.find_first_of("\\^$|?*+()[]{}") == std::string::npos) return pattern;
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(1 << 20);
  auto expression = std::make_shared<const re2::RE2>(
      absl::StrReplaceAll(pattern.text_, {{".", "\\."}}), options);
  if (!expression->ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("api ", api, ": ", expression->error()));
  }
  pattern.expression_ = std::move(expression);
  return pattern;
}

bool ApiPattern::Matches(absl::string_view row) const {
  if (expression_ == nullptr) return absl::StrContains(row, text_);
  return re2::RE2::PartialMatch({row.data(), row.size()}, *expression_);
}

}  // namespace rankprobe::analysis
