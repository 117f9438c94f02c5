// SPDX-License-Identifier: Apache-2.0
#include "web/graph/graph_requests.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/json_check.h"
#include "common/text/json_text.h"
#include "dump_format/json_value.h"

namespace rankprobe {
namespace {

// Names of calls have hundreds of bytes, paths at most 4,096.
constexpr size_t kMostTextBytes = 64 << 10;

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(OneLine(field), ": ", what));
}

absl::Status TakeText(const JsonMember& member, std::string* out) {
  if (!member.value.is_string()) return Bad(member.key, "no text");
  if (member.value.text.size() > kMostTextBytes) {
    return Bad(member.key, "longer than 64 KiB");
  }
  *out = std::string(member.value.text);
  return absl::OkStatus();
}

absl::Status TakeNumber(const JsonMember& member, int64_t* out) {
  if (member.value.kind != JsonValue::Kind::kInt ||
      !absl::SimpleAtoi(member.value.text, out)) {
    return Bad(member.key, "not an integer");
  }
  return absl::OkStatus();
}

absl::Status TakeFlag(const JsonMember& member, bool* out) {
  if (!member.value.is_bool()) return Bad(member.key, "neither true nor false");
  *out = member.value.kind == JsonValue::Kind::kTrue;
  return absl::OkStatus();
}

absl::Status TakePairs(const JsonMember& member, GraphRequest* request) {
  if (!member.value.is_array()) return Bad(member.key, "no list");
  if (member.value.items().size() > kMostGraphPairs) {
    return Bad(member.key, absl::StrCat("more than ", kMostGraphPairs));
  }
  for (const JsonValue& pair : member.value.items()) {
    const auto names = pair.items();
    if (names.size() != 2 || !names[0].is_string() || !names[1].is_string()) {
      return Bad(member.key, "a pair is a list of two names");
    }
    request->pairs.emplace_back(names[0].text, names[1].text);
  }
  return absl::OkStatus();
}

absl::Status Take(const JsonMember& member, GraphRequest* request) {
  const absl::string_view key = member.key;
  if (key == "db") return TakeText(member, &request->db);
  if (key == "step") return TakeNumber(member, &request->step);
  if (key == "rank") return TakeNumber(member, &request->rank);
  if (key == "side") return TakeText(member, &request->side);
  if (key == "node") return TakeText(member, &request->node);
  if (key == "pairs") return TakePairs(member, request);
  if (key == "target") return TakeText(member, &request->target);
  if (key == "reference") return TakeText(member, &request->reference);
  if (key == "overflowCheck") return TakeFlag(member, &request->overflow_check);
  if (key == "fuzzy") return TakeFlag(member, &request->fuzzy);
  if (key == "layers") return TakeFlag(member, &request->layers);
  if (key == "again") return TakeFlag(member, &request->again);
  if (key == "path") return TakeText(member, &request->path);
  return Bad(key, "there is no such field");
}

}  // namespace

absl::StatusOr<GraphRequest> ParseGraphRequest(absl::string_view body) {
  constexpr int kDepth = 4;
  if (!IsJsonText(body, kDepth)) {
    return absl::InvalidArgumentError("the request is not JSON");
  }
  JsonDocument document;
  RP_RETURN_IF_ERROR(document.ParseView(body));
  if (!document.root().is_object()) {
    return absl::InvalidArgumentError("the request is not a JSON object");
  }
  GraphRequest request;
  for (const JsonMember& member : document.root().fields()) {
    RP_RETURN_IF_ERROR(Take(member, &request));
  }
  return request;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseMapping(
    absl::string_view text) {
  if (!IsJsonText(text, 2)) {
    return absl::InvalidArgumentError(
        "no mapping: expected {\"name\": \"name\", ..}");
  }
  JsonDocument document;
  RP_RETURN_IF_ERROR(document.ParseView(text));
  if (!document.root().is_object()) {
    return absl::InvalidArgumentError(
        "no mapping: expected {\"name\": \"name\", ..}");
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  absl::flat_hash_set<absl::string_view> targets;
  absl::flat_hash_set<absl::string_view> references;
  for (const JsonMember& member : document.root().fields()) {
    if (!member.value.is_string()) return Bad(member.key, "no name");
    if (pairs.size() >= kMostGraphPairs) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a mapping of more than ", kMostGraphPairs, " pairs"));
    }
    // A node has at most one partner.
    if (!targets.insert(member.key).second ||
        !references.insert(member.value.text).second) {
      return Bad(member.key, "in two pairs of the mapping");
    }
    pairs.emplace_back(member.key, member.value.text);
  }
  return pairs;
}

std::string MappingText(
    const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string text;
  JsonTextWriter writer(&text);
  writer.BeginObject();
  for (const auto& [target, reference] : pairs) {
    writer.Key(target);
    writer.String(reference);
  }
  writer.EndObject();
  text.push_back('\n');
  return text;
}

}  // namespace rankprobe
