// SPDX-License-Identifier: Apache-2.0
// Output conventions of commands: tables for people, JSON for programs.
// Everything that the command line writes passes through these functions,
// because most of it comes from outside: names of runs and hosts, messages of
// ranks, contents of dumps. None of it may control a terminal or look like a
// line of rankprobe. Not thread-safe.
#ifndef RANKPROBE_CLI_OUTPUT_OUTPUT_H_
#define RANKPROBE_CLI_OUTPUT_OUTPUT_H_

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace rankprobe {

// A text of several lines, such as a table: its line breaks stay.
struct Lines {
  absl::string_view text;
};

namespace output_internal {

std::string Show(Lines lines);
std::string Show(absl::string_view text);
template <typename T>
requires(!std::convertible_to<T, absl::string_view>) T Show(const T& value) {
  return value;
}

template <typename T>
using Shown = decltype(Show(std::declval<const T&>()));

}  // namespace output_internal

// Like fprintf, with VisibleText in place of every text among the arguments, and
// the names that the user gave in place of temporary directories; the line breaks
// of the format stay.
template <typename... Args>
void Print(std::FILE* out,
           const absl::FormatSpec<output_internal::Shown<Args>...>& format,
           const Args&... args) {
  const std::string text =
      absl::StrFormat(format, output_internal::Show(args)...);
  std::fwrite(text.data(), 1, text.size(), out);
}

// Moves the cursor home and clears the terminal below: besides Progress, the
// only function that may control the terminal.
void ClearTerminal();

// JSON and the end of its line, to standard output.
void PrintJson(absl::string_view json);

// Left-aligned columns, two spaces between; numbers to the right. Cells are
// made visible as they are added. A cell of more than 60 columns is printed
// completely and widens no other row.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Add(const std::vector<std::string>& row);
  std::string ToText() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "1.5 GiB"; bytes below 1 KiB as they are.
std::string HumanBytes(uint64_t bytes);

// One line of strict JSON with the proto's field names; every key is there.
std::string ToJson(const google::protobuf::Message& message);

// Prints the message so, where JSON is `wanted`, and answers whether.
inline bool PrintIf(bool wanted, const google::protobuf::Message& message) {
  if (wanted) PrintJson(ToJson(message));
  return wanted;
}

// How far a verb is, on standard error. One thread.
class Progress {
 public:
  enum class Style {
    kNone,
    kBar,    // drawn over itself, and gone with the object
    kLines,  // one at each tenth
  };
  // A bar on a terminal; elsewhere `otherwise`. Nothing where JSON is wanted.
  static Style StyleFor(bool json, Style otherwise);

  // `what` begins each line, and stands behind the bar.
  Progress(Style style, std::string what)
      : style_(style), what_(std::move(what)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { Clear(); }

  // `amount` ("1.5 MiB") shows everywhere, `name` (a path) in a bar.
  void Show(uint64_t done, uint64_t total, absl::string_view amount = "",
            absl::string_view name = "");
  // Makes room for other lines; the next Show draws the bar again.
  void Clear();

 private:
  const Style style_;
  const std::string what_;
  uint64_t next_tenth_ = 0;
  std::string bar_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_OUTPUT_H_
