// SPDX-License-Identifier: Apache-2.0
#include "analysis/align/token_rows.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"
#include "dump_format/input_files.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kMaxNamed = 8;

absl::Status Refused(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

int64_t IntOf(const JsonValue& object, absl::string_view key) {
  const JsonValue* const value = object.Find(key);
  if (value == nullptr || value->kind != JsonValue::Kind::kInt ||
      !(value->number >= 0 && value->number < 1e12)) {
    return -1;
  }
  return static_cast<int64_t>(value->number);
}

// Returns the shape of the row of tokens.
absl::StatusOr<std::vector<int64_t>> TokenShape(const DumpReader& dump,
                                                const std::string& wanted) {
  // The entry's name is a prefix of the row's name.
  for (size_t end = wanted.rfind('.'); end != std::string::npos && end > 0;
       end = wanted.rfind('.', end - 1)) {
    const auto index = dump.Find(wanted.substr(0, end));
    if (!index.has_value()) continue;
    JsonDocument record;
    std::vector<DumpRow> rows;
    RP_RETURN_IF_ERROR(dump.Read(*index, &record));
    RP_RETURN_IF_ERROR(
        ReadRows(dump.name(*index), dump.stats(), &record, &rows));
    for (const DumpRow& row : rows) {
      if (row.name != wanted || row.record == nullptr) continue;
      const JsonValue* const shape = row.record->Find("shape");
      if (shape == nullptr) continue;
      std::vector<int64_t> out;
      for (const JsonValue& size : shape->items()) {
        if (size.kind != JsonValue::Kind::kInt || size.number < 0 ||
            size.number > 1e9) {
          return Refused(dump.path(), absl::StrCat(wanted, " has a bad shape"));
        }
        out.push_back(static_cast<int64_t>(size.number));
      }
      if (out.size() == 1 || out.size() == 2) return out;
      return Refused(dump.path(),
                     absl::StrCat(wanted, " is ", ShapeText(out),
                                  ", not [tokens] or [batch, tokens]"));
    }
  }
  return Refused(dump.path(),
                 absl::StrCat("has no ", wanted,
                              ", whose shape says how many tokens a step has "
                              "(tokens, in the rules)"));
}

// Reads requests.json, which the program that was recorded wrote; it is not
// trusted.
absl::Status ReadRequests(FileSystem* file_system, const std::string& path,
                          std::map<std::string, int64_t>* next,
                          StepTokens* step) {
  RP_ASSIGN_OR_RETURN(std::string text, ReadInput(file_system, path));
  JsonDocument document;
  if (!document.Parse(std::move(text)).ok() || !document.root().is_array()) {
    return Refused(path, "is not a list of requests");
  }
  if (document.root().items().size() != 1) {
    return Refused(path,
                   "has several starts in one step, which are not "
                   "aligned");
  }
  const JsonValue& start = document.root().items()[0];
  const JsonValue* const requests = start.Find("requests");
  const JsonValue* const recorded = start.Find("recorded");
  const bool one = recorded != nullptr && recorded->is_string();
  if (requests == nullptr || !requests->is_array()) {
    return Refused(path, "has no requests");
  }
  // If no request has this id, ids that contain it match: a server may have
  // derived them.
  const auto is_it = [&](const JsonValue& item) {
    const JsonValue* const id = item.Find("id");
    return one && id != nullptr && id->is_string() &&
           id->text == recorded->text;
  };
  const bool whole_id =
      std::any_of(requests->items().begin(), requests->items().end(), is_it);
  int64_t before = 0;
  for (const JsonValue& item : requests->items()) {
    const JsonValue* const id = item.Find("id");
    RequestRows rows;
    rows.begin = IntOf(item, "begin");
    rows.end = IntOf(item, "end");
    rows.position = IntOf(item, "position");
    rows.index = step->requests++;
    if (id == nullptr || !id->is_string() || rows.begin < 0 ||
        rows.end < rows.begin) {
      return Refused(path, "has a request without id, begin or end");
    }
    rows.id = std::string(id->text);
    if (rows.position < 0) rows.position = (*next)[rows.id];
    (*next)[rows.id] = rows.position + rows.end - rows.begin;
    if (one) {
      // A dump of one request has only its rows, concatenated.
      if (whole_id ? !is_it(item) : !absl::StrContains(rows.id, recorded->text))
        continue;
      rows.end = before + rows.end - rows.begin;
      rows.begin = before;
      before = rows.end;
    }
    if (rows.end > step->tokens) {
      return Refused(path, absl::StrCat("has rows to ", rows.end, " of ",
                                        step->tokens, " tokens"));
    }
    step->rows.push_back(std::move(rows));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<StepTokens>> ReadStepTokens(
    FileSystem* file_system, const DumpLayout& layout,
    const std::string& tokens_row) {
  if (const size_t ranks = layout.Ranks().size(); ranks != 1) {
    return Refused(layout.path,
                   absl::StrCat("has ", ranks,
                                " ranks, each with a part of the model; what "
                                "is aligned is one rank with all of it"));
  }
  std::vector<StepTokens> out;
  std::map<std::string, int64_t> next;
  for (const DumpPlace& place : layout.places) {
    RP_ASSIGN_OR_RETURN(const auto dump,
                        DumpReader::Open(file_system, place.directory, {}));
    RP_ASSIGN_OR_RETURN(const std::vector<int64_t> shape,
                        TokenShape(*dump, tokens_row));
    StepTokens& step = out.emplace_back();
    step.place = place;
    step.flat = shape.size() == 1;
    step.batch = step.flat ? 1 : shape[0];
    step.tokens = shape.back();
    const std::string requests = place.directory + "/requests.json";
    if (file_system->Exists(requests)) {
      if (!step.flat) {
        step.flat = true;
        step.tokens *= step.batch;
        step.batch = 1;
      }
      RP_RETURN_IF_ERROR(ReadRequests(file_system, requests, &next, &step));
      continue;
    }
    step.requests = step.batch;
    for (int64_t i = 0; i < step.batch; ++i) {
      RequestRows rows{absl::StrCat(i), i * step.tokens, (i + 1) * step.tokens,
                       0, i};
      rows.position = next[rows.id];
      next[rows.id] += step.tokens;
      step.rows.push_back(std::move(rows));
    }
  }
  return out;
}

absl::StatusOr<std::vector<StepTokens>> ReadStepRequests(
    FileSystem* file_system, const DumpLayout& layout) {
  std::vector<StepTokens> out;
  std::map<std::string, int64_t> next;
  std::set<int64_t> seen;
  for (const DumpPlace& place : layout.places) {
    const std::string requests = place.directory + "/requests.json";
    if (seen.contains(place.step) || !file_system->Exists(requests)) continue;
    seen.insert(place.step);
    StepTokens& step = out.emplace_back();
    step.place = place;
    step.flat = true;
    // Without a row of tokens their number is unknown, so no row is rejected.
    step.tokens = std::numeric_limits<int64_t>::max();
    RP_RETURN_IF_ERROR(ReadRequests(file_system, requests, &next, &step));
  }
  return out;
}

absl::StatusOr<std::string> ChooseRequest(const std::vector<StepTokens>& steps,
                                          const std::string& path,
                                          const std::string& wanted) {
  std::vector<std::string> ids;  // in the order of arrival
  std::set<std::string> seen;
  for (const StepTokens& step : steps) {
    for (const RequestRows& rows : step.rows) {
      if (seen.insert(rows.id).second) ids.push_back(rows.id);
    }
  }
  if (!wanted.empty() && seen.contains(wanted)) return wanted;
  std::vector<std::string> fit;
  for (const std::string& id : ids) {
    if (absl::StrContains(id, wanted)) fit.push_back(id);
  }
  if (fit.size() == 1) return fit[0];
  const std::vector<std::string>& named = fit.empty() ? ids : fit;
  const size_t count = std::min(named.size(), kMaxNamed);
  return Refused(
      path,
      absl::StrCat(fit.empty()
                       ? absl::StrCat("no request is ", wanted)
                       : absl::StrCat(fit.size(), " requests",
                                      wanted.empty() ? ", and none was chosen"
                                                     : " have " + wanted),
                   "; there are ",
                   absl::StrJoin(named.begin(), named.begin() + count, ", "),
                   named.size() > count ? ", .." : ""));
}

const RequestRows* RowsOf(const StepTokens& step, const std::string& id) {
  for (const RequestRows& rows : step.rows) {
    if (rows.id == id) return &rows;
  }
  return nullptr;
}

absl::Status TakeTokens(const StepTokens& step, int64_t begin, int64_t end,
                        AlignedTensor* tensor) {
  std::vector<int64_t>& shape = tensor->shape;
  if (!step.flat && shape.size() >= 2 && shape[0] == step.batch &&
      shape[1] == step.tokens) {
    shape[1] *= shape[0];
    shape.erase(shape.begin());
  } else if (shape.empty() || shape[0] != step.batch * step.tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("has shape ", ShapeText(shape), ", and its step has ",
                     step.batch * step.tokens, " tokens"));
  }
  return Slice(0, begin, end, tensor);
}

absl::Status TakeLast(const StepTokens& step, const RequestRows& request,
                      int64_t at, AlignedTensor* tensor) {
  std::vector<int64_t>& shape = tensor->shape;
  const bool is_last = at + 1 == request.end;
  if (is_last && !step.flat && shape.size() >= 2 && shape[0] == step.batch &&
      shape[1] == 1) {
    shape.erase(shape.begin() + 1);
    return Slice(0, request.index, request.index + 1, tensor);
  }
  if (is_last && !shape.empty() && shape[0] == step.requests &&
      (step.flat || shape.size() < 2 || shape[1] != step.tokens)) {
    return Slice(0, request.index, request.index + 1, tensor);
  }
  return TakeTokens(step, at, at + 1, tensor);
}

}  // namespace rankprobe::analysis
