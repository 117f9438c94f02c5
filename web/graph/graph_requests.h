// SPDX-License-Identifier: Apache-2.0
// Requests of a page about graphs, as untrusted JSON. They are parsed strictly:
// an unknown field, an invalid number and a text that is too long are refused
// with a message of one line. Pure functions, plain values.
#ifndef RANKPROBE_WEB_GRAPH_GRAPH_REQUESTS_H_
#define RANKPROBE_WEB_GRAPH_GRAPH_REQUESTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

struct GraphRequest {
  // A database below the root, or a name such as "@3" of one that was built for
  // a page.
  std::string db;
  int64_t step = 0;
  int64_t rank = 0;
  std::string side;  // data_source: "NPU" or "Bench"
  std::string node;
  // Pairs of nodes, the target's node first.
  std::vector<std::pair<std::string, std::string>> pairs;
  // For Build: directories below the root, or run:NAME[@STEP].
  std::string target;
  std::string reference;
  bool overflow_check = false;
  bool fuzzy = false;
  bool layers = false;
  bool again = false;
  // Path of a mapping, below the root.
  std::string path;
};

inline constexpr size_t kMostGraphPairs = 10'000;
inline constexpr size_t kMostMappingBytes = 1 << 20;

// Returns INVALID_ARGUMENT that names the field which is not valid.
absl::StatusOr<GraphRequest> ParseGraphRequest(absl::string_view body);

// Parses a mapping: {"name of the target": "name of the reference", ..},
// msprobe's .vis.config. Names that appear twice are refused.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseMapping(
    absl::string_view text);
std::string MappingText(
    const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_GRAPH_REQUESTS_H_
