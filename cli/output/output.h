// SPDX-License-Identifier: Apache-2.0
// Output conventions of commands: tables for people, JSON for programs.
// Everything that the command line writes passes through these functions,
// because most of it comes from outside: names of runs and hosts, messages of
// ranks, contents of dumps. No such text may control a terminal or look like a
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

// A text of several lines, such as a table, whose line breaks are kept.
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

// Like fprintf, with VisibleText applied to every text argument, and with the
// names that the user gave instead of temporary directories. Line breaks of the
// format are kept.
template <typename... Args>
void Print(std::FILE* out,
           const absl::FormatSpec<output_internal::Shown<Args>...>& format,
           const Args&... args) {
  const std::string text =
      absl::StrFormat(format, output_internal::Show(args)...);
  std::fwrite(text.data(), 1, text.size(), out);
}

// Moves the cursor home and clears the terminal below it. Besides Progress,
// this is the only function that may control the terminal.
void ClearTerminal();

// Writes JSON and a line break to standard output.
void PrintJson(absl::string_view json);

// Left-aligned columns with two spaces between them; numbers are right-aligned.
// Cells are made visible as they are added. A cell of more than 60 columns is
// printed completely and does not widen other rows.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Add(const std::vector<std::string>& row);
  std::string ToText() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Returns a text such as "1.5 GiB"; sizes below 1 KiB are in bytes.
std::string HumanBytes(uint64_t bytes);

// Returns one line of strict JSON with the proto's field names; every key is
// present.
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
    kBar,    // redrawn in place, and cleared with the object
    kLines,  // one line at each tenth
  };
  // Returns kBar on a terminal, `otherwise` elsewhere, and kNone if JSON is
  // printed.
  static Style StyleFor(bool json, Style otherwise);

  // `what` begins each line, or follows the bar.
  Progress(Style style, std::string what)
      : style_(style), what_(std::move(what)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { Clear(); }

  // `amount` ("1.5 MiB") is always shown, `name` (a path) only in a bar.
  void Show(uint64_t done, uint64_t total, absl::string_view amount = "",
            absl::string_view name = "");
  // Clears the bar for other output; the next Show draws it again.
  void Clear();

 private:
  const Style style_;
  const std::string what_;
  uint64_t next_tenth_ = 0;
  std::string bar_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_OUTPUT_H_
