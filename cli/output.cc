#include "cli/output.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/util/json_util.h"

namespace rankprobe {
namespace {

bool LooksLikeNumber(const std::string& cell) {
  return !cell.empty() && absl::ascii_isdigit(cell[0]);
}

}  // namespace

std::string Table::ToText() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      if (c > 0) line += "  ";
      line += LooksLikeNumber(row[c]) ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string HumanBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B")
                   : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string out;
  if (!google::protobuf::util::MessageToJsonString(message, &out, options).ok())
    return "{}";
  return out;
}

void Progress::Show(uint64_t done, uint64_t total, uint64_t bytes,
                    const std::string& current) {
  const uint64_t percent =
      total == 0 ? 0 : std::min<uint64_t>(100, 100 * done / total);
  if (terminal_) {
    const size_t filled = percent * 30 / 100;
    std::string name =
        current.size() > 40
            ? absl::StrCat("..", current.substr(current.size() - 38))
            : current;
    for (char& c : name) {
      if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
    }
    absl::FPrintF(stderr, "\r\x1b[K[%s%s] %3d%%  %s  %s",
                  std::string(filled, '#'), std::string(30 - filled, '.'),
                  percent, HumanBytes(bytes), name);
    drawn_ = true;
  } else if (percent / 10 > last_tenth_) {
    last_tenth_ = percent / 10;
    absl::FPrintF(stderr, "%d%% %s\n", percent, HumanBytes(bytes));
  }
}

void Progress::Finish() {
  if (terminal_ && drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

}  // namespace rankprobe
