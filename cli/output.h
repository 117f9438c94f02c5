// How verbs speak: tables for people, JSON for programs. Not thread-safe.
#ifndef RANKPROBE_CLI_OUTPUT_H_
#define RANKPROBE_CLI_OUTPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace rankprobe {

// Left-aligned columns, two spaces between; numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string ToText() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "1.5 GiB"; bytes below 1 KiB as they are.
std::string HumanBytes(uint64_t bytes);

// One line of strict JSON with the proto's field names; every key is there.
std::string ToJson(const google::protobuf::Message& message);

// A progress line: drawn over itself on a terminal, now and then elsewhere.
class Progress {
 public:
  explicit Progress(bool terminal) : terminal_(terminal) {}
  void Show(uint64_t done, uint64_t total, uint64_t bytes,
            const std::string& current);
  void Finish();

 private:
  const bool terminal_;
  bool drawn_ = false;
  uint64_t last_tenth_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_H_
