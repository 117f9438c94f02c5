// SPDX-License-Identifier: Apache-2.0
#include "common/text/json_check.h"

#include "absl/strings/match.h"
#include "rapidjson/encodedstream.h"
#include "rapidjson/memorystream.h"
#include "rapidjson/reader.h"

namespace rankprobe {
namespace {

// Stops the parser at the maximum depth.
class DepthLimit
    : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, DepthLimit> {
 public:
  explicit DepthLimit(int levels) : left_(levels) {}
  bool StartObject() { return --left_ >= 0; }
  bool EndObject(rapidjson::SizeType) { return End(); }
  bool StartArray() { return --left_ >= 0; }
  bool EndArray(rapidjson::SizeType) { return End(); }

 private:
  bool End() {
    ++left_;
    return true;
  }

  int left_;
};

}  // namespace

bool IsJsonText(absl::string_view untrusted, int max_depth) {
  // RapidJSON treats a NUL as the end, and ignores a byte order mark.
  if (absl::StrContains(untrusted, '\0') ||
      absl::StartsWith(untrusted, "\xef\xbb\xbf"))
    return false;
  rapidjson::MemoryStream memory(untrusted.data(), untrusted.size());
  rapidjson::EncodedInputStream<rapidjson::UTF8<>, rapidjson::MemoryStream>
      stream(memory);
  rapidjson::Reader reader;
  DepthLimit limit(max_depth);
  constexpr unsigned kFlags = rapidjson::kParseIterativeFlag |
                              rapidjson::kParseValidateEncodingFlag |
                              rapidjson::kParseNumbersAsStringsFlag;
  return !reader.Parse<kFlags>(stream, limit).IsError();
}

}  // namespace rankprobe
