// SPDX-License-Identifier: Apache-2.0
// Any bytes as a request of the page's graphs, as a mapping that somebody saved,
// and as the values of two nodes that were matched by hand: a value or one line,
// and what was read is within its limits.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "common/text/json_check.h"
#include "web/graph/graph_requests.h"
#include "web/graph/graph_root.h"
#include "web/graph/hand_match.h"

namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: broken: %s\n", what);
  std::abort();
}

bool IsOneLine(absl::string_view text) {
  return text.find('\n') == absl::string_view::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using rankprobe::GraphRequest;
  const absl::string_view said(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<GraphRequest> request =
      rankprobe::ParseGraphRequest(said);
  if (request.ok()) {
    Require(request->pairs.size() <= rankprobe::kMostGraphPairs, "the pairs");
    for (const std::string* text : {&request->db, &request->target,
                                    &request->reference, &request->path}) {
      Require(text->size() <= size, "the length of a text");
      // What is taken for a path below the root never leaves it.
      if (!rankprobe::IsPathBelow(*text)) continue;
      Require(text->empty() || text->front() != '/', "a path from the top");
      Require(("/" + *text + "/").find("/../") == std::string::npos,
              "a path upwards");
      Require(text->find('\0') == std::string::npos, "a NUL in a path");
    }
  } else {
    Require(IsOneLine(request.status().message()), "one line");
  }
  const auto mapping = rankprobe::ParseMapping(said);
  if (mapping.ok()) {
    const auto again =
        rankprobe::ParseMapping(rankprobe::MappingText(*mapping));
    Require(again.ok() && *again == *mapping, "a mapping that was written");
  }
  // The first byte cuts the rest into the values of two nodes.
  if (size < 2) return 0;
  const absl::string_view rest = said.substr(1);
  const size_t cut = rest.size() * data[0] / 255;
  rankprobe::GraphDatabase::Values target;
  rankprobe::GraphDatabase::Values reference;
  target.output = std::string(rest.substr(0, cut));
  reference.output = std::string(rest.substr(cut));
  target.input = reference.output;
  for (const char* task : {"summary", "md5", "all", "structure"}) {
    const auto match =
        rankprobe::MatchByHand(task, "Torch.a.0.forward", target, reference);
    if (!match.ok()) continue;
    Require(match->precision >= -1 && match->precision <= 1, "a verdict");
    Require(rankprobe::IsJsonText(match->input, 4) &&
                rankprobe::IsJsonText(match->output, 4),
            "metrics that are JSON");
  }
  return 0;
}
