// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/object_store.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// S3 accepts 1,024 bytes including the prefix of the store, file systems 255
// per part.
constexpr size_t kMaxKeyBytes = 700;
constexpr size_t kMaxPartBytes = 200;

bool IsKeyByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
         c == '_' || c == '-';
}

absl::Status NoKey(absl::string_view key) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", VisibleText(key.substr(0, kMaxKeyBytes)), "\" is not a key"));
}

}  // namespace

absl::Status CheckObjectKey(absl::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes) return NoKey(key);
  for (const absl::string_view part : absl::StrSplit(key, '/')) {
    if (part.empty() || part.size() > kMaxPartBytes ||
        !absl::ascii_isalnum(static_cast<unsigned char>(part[0])) ||
        !absl::c_all_of(part, IsKeyByte)) {
      return NoKey(key);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckObjectPrefix(absl::string_view prefix) {
  // A complete key may follow, whatever the prefix ends with.
  return prefix.empty() ? absl::OkStatus()
                        : CheckObjectKey(absl::StrCat(
                              prefix, prefix.back() == '/' ? "x" : ""));
}

absl::StatusOr<std::string> GetObject(ObjectStore* store,
                                      const std::string& key,
                                      uint64_t most_bytes) {
  RP_ASSIGN_OR_RETURN(ObjectTail tail, store->GetTail(key, most_bytes));
  if (tail.object_bytes > most_bytes) {
    // The archive has no objects that large.
    return absl::DataLossError(absl::StrCat(key, " of ", store->name(), " has ",
                                            tail.object_bytes,
                                            " bytes, more than ", most_bytes));
  }
  return std::move(tail.bytes);
}

}  // namespace rankprobe
