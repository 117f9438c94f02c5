// SPDX-License-Identifier: Apache-2.0
#include "web/gateway/grid_bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "web/gateway/json_reply.h"
#include "web/http/http_message.h"

namespace rankprobe {
namespace {

constexpr uint32_t kHead = 0;
constexpr uint32_t kRow = 1;
constexpr uint32_t kError = 2;
constexpr uint32_t kWide = 1;
constexpr uint32_t kOneCount = 2;
constexpr uint32_t kOneNonFinite = 4;
constexpr uint32_t kOneRank = 8;

void AppendU32(uint32_t number, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8)
    out->push_back(static_cast<char>(number >> shift & 0xff));
}

void AppendFrame(uint32_t kind, absl::string_view body, std::string* out) {
  AppendU32(kind, out);
  AppendU32(static_cast<uint32_t>(body.size()), out);
  out->append(body.data(), body.size());
}

// Maps "no rank" and numbers that are not a rank to -1.
uint32_t ToU32(int64_t rank) {
  const bool fits = rank >= 0 && rank <= std::numeric_limits<int32_t>::max();
  return static_cast<uint32_t>(fits ? static_cast<int32_t>(rank) : -1);
}
uint32_t ToU32(uint32_t number) { return number; }

// Whether all numbers are equal, so that one is written for all.
template <typename Numbers>
bool IsOne(const Numbers& numbers) {
  return !numbers.empty() &&
         std::all_of(numbers.begin(), numbers.end(),
                     [&](auto number) { return number == numbers[0]; });
}
template <typename Numbers>
void AppendNumbers(const Numbers& numbers, bool one, std::string* out) {
  if (one) {
    AppendU32(ToU32(numbers[0]), out);
    return;
  }
  for (const auto number : numbers) AppendU32(ToU32(number), out);
}

absl::Status AppendRow(const v1::GridRow& row, std::string* out) {
  const auto columns = static_cast<size_t>(row.counts_size());
  const bool wide = row.packed().empty() && columns > 0;
  const size_t cells = wide ? static_cast<size_t>(row.cells_size())
                            : row.packed().size() / sizeof(float);
  if (cells != columns || row.packed().size() % sizeof(float) != 0 ||
      static_cast<size_t>(row.non_finite_size()) != columns ||
      static_cast<size_t>(row.ranks_size()) != columns) {
    return absl::InternalError("a row of the grid is incomplete");
  }
  uint32_t flags = wide ? kWide : 0;
  if (IsOne(row.counts())) flags |= kOneCount;
  if (IsOne(row.non_finite())) flags |= kOneNonFinite;
  if (IsOne(row.ranks())) flags |= kOneRank;
  const size_t begin = out->size();
  AppendFrame(kRow, "", out);
  AppendU32(flags, out);
  AppendU32(static_cast<uint32_t>(columns), out);
  AppendU32(static_cast<uint32_t>(row.name().size()), out);
  out->append(row.name());
  out->append(row.packed());
  if (wide) {
    for (const double cell : row.cells()) {
      uint64_t bits = 0;
      std::memcpy(&bits, &cell, sizeof(bits));
      AppendU32(static_cast<uint32_t>(bits), out);
      AppendU32(static_cast<uint32_t>(bits >> 32), out);
    }
  }
  AppendNumbers(row.counts(), (flags & kOneCount) != 0, out);
  AppendNumbers(row.non_finite(), (flags & kOneNonFinite) != 0, out);
  AppendNumbers(row.ranks(), (flags & kOneRank) != 0, out);
  std::string size;
  AppendU32(static_cast<uint32_t>(out->size() - begin - 8), &size);
  out->replace(begin + 4, 4, size);
  return absl::OkStatus();
}

}  // namespace

absl::Status AppendGridFrame(const v1::GridReply& reply, std::string* out) {
  if (reply.has_row()) return AppendRow(reply.row(), out);
  if (!reply.has_head())
    return absl::InternalError("neither head nor row of a grid");
  std::string json;
  RP_RETURN_IF_ERROR(ToJson(reply.head(), &json));
  AppendFrame(kHead, json, out);
  return absl::OkStatus();
}

void AppendGridError(const absl::Status& status, std::string* out) {
  AppendFrame(kError, ErrorJson(status), out);
}

}  // namespace rankprobe
