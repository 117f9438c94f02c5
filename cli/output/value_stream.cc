// SPDX-License-Identifier: Apache-2.0
#include "cli/output/value_stream.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/little_endian.h"
#include "common/text/json_text.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kMagic = "RPVALUES";
constexpr uint64_t kVersion = 1;

void AppendHeader(const std::string& json, std::string* out) {
  AppendLittleEndian(static_cast<uint32_t>(json.size()), out);
  out->append(json);
}

}  // namespace

std::string ValueStreamHead(absl::string_view run) {
  std::string json;
  JsonTextWriter writer(&json);
  writer.BeginObject();
  writer.Key("version");
  writer.Uint(kVersion);
  writer.Key("run");
  writer.String(run);
  writer.EndObject();
  std::string out(kMagic);
  AppendHeader(json, &out);
  return out;
}

absl::Status AppendValueFrame(const v1::ValueBatch& batch, std::string* out) {
  const size_t rows = batch.rows();
  const size_t bits = (rows + 7) / 8;
  struct Buffer {
    std::string name;
    const std::string* bytes;
    size_t expected;
  };
  // Columns of eight-byte numbers come first, so that each column is aligned to
  // its element size.
  std::vector<Buffer> buffers = {{"step", &batch.steps(), 8 * rows},
                                 {"rank", &batch.ranks(), 8 * rows},
                                 {"pid", &batch.pids(), 8 * rows}};
  for (const v1::StatisticColumn& column : batch.columns())
    buffers.push_back({column.key(), &column.numbers(), 8 * rows});
  buffers.push_back({"name", &batch.name_numbers(), 4 * rows});
  for (const v1::StatisticColumn& column : batch.columns()) {
    buffers.push_back(
        {absl::StrCat(column.key(), "?"), &column.present(), bits});
  }
  std::string json;
  JsonTextWriter writer(&json);
  writer.BeginObject();
  writer.Key("rows");
  writer.Uint(rows);
  writer.Key("names");
  writer.BeginArray();
  for (const v1::ValueName& name : batch.names()) {
    writer.BeginArray();
    writer.String(name.entry());
    writer.String(name.value());
    writer.EndArray();
  }
  writer.EndArray();
  writer.Key("buffers");
  writer.BeginArray();
  for (const Buffer& buffer : buffers) {
    if (buffer.bytes->size() != buffer.expected)
      return absl::DataLossError("the collector's answer cannot be read");
    writer.BeginArray();
    writer.String(buffer.name);
    writer.Uint(buffer.expected);
    writer.EndArray();
  }
  writer.EndArray();
  writer.EndObject();
  AppendHeader(json, out);
  for (const Buffer& buffer : buffers) out->append(*buffer.bytes);
  return absl::OkStatus();
}

void AppendValueEnd(const v1::ValuesEnd& end, std::string* out) {
  std::string json;
  JsonTextWriter writer(&json);
  writer.BeginObject();
  writer.Key("end");
  writer.BeginObject();
  const std::vector<std::pair<absl::string_view, uint64_t>> counts = {
      {"rows", end.rows()},
      {"rank_steps", end.rank_steps()},
      {"incomplete_rank_steps", end.incomplete_rank_steps()},
      {"deleted_rank_steps", end.deleted_rank_steps()}};
  for (const auto& [key, count] : counts) {
    writer.Key(key);
    writer.Uint(count);
  }
  writer.EndObject();
  writer.EndObject();
  AppendHeader(json, out);
}

}  // namespace rankprobe
