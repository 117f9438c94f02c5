// SPDX-License-Identifier: Apache-2.0
// Walks a JSON file of any size through a window of fixed size: finds where
// members begin and end without building their values. Brackets, quotes and
// literals are checked as far as skipping needs; a slice is checked in full
// when a JsonDocument parses it. Not thread-safe. The file must outlive the
// stream.
#ifndef RANKPROBE_DUMP_FORMAT_JSON_STREAM_H_
#define RANKPROBE_DUMP_FORMAT_JSON_STREAM_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace rankprobe {

class JsonStream {
 public:
  // `size` is the file's length when it was opened.
  JsonStream(const RandomAccessFile* file, uint64_t size);
  // Walks a text in memory, which must outlive the stream.
  explicit JsonStream(absl::string_view text);

  // Returns the next byte that is not a space; 0 at the end of the file.
  char Peek();
  // Consumes the next byte if it is `c`; returns whether it was.
  bool Take(char c);
  // Consumes `c`; INVALID_ARGUMENT if the next byte is another one.
  absl::Status Expect(char c);
  // Consumes a string of at most 1 MiB and decodes it.
  absl::Status ReadString(std::string* out);
  // Consumes one value; [begin, end) is its range in the file.
  absl::Status SkipValue(uint64_t* begin, uint64_t* end);
  absl::Status SkipValue();
  // Consumes one value and returns its text, which is valid until the stream is
  // used again. `scratch` is used for a text that the window does not hold
  // completely. RESOURCE_EXHAUSTED if the text is longer than `max_bytes`; it
  // is consumed anyway.
  absl::StatusOr<absl::string_view> ReadValue(uint64_t max_bytes,
                                              std::string* scratch);
  // Consumes an object: `member` is called after the name of each member and
  // must consume its value. Returns an error of `member`.
  absl::Status ReadObject(
      absl::FunctionRef<absl::Status(const std::string& name)> member);
  // Consumes an array: `item` must consume one value.
  absl::Status ReadArray(absl::FunctionRef<absl::Status()> item);
  uint64_t offset() const { return window_offset_ + at_; }
  // Whether a skipped value had a member named "md5", at any depth.
  bool saw_md5() const { return saw_md5_; }
  // An error with the current offset, or the error of the last read.
  absl::Status Fault(absl::string_view what) const;

 private:
  // Makes window_[at_] valid; returns false at the end of the file or on an
  // error.
  bool Fill();
  absl::Status SkipString();
  absl::Status EndFault() const;

  const RandomAccessFile* const file_;
  const absl::string_view text_;  // without a file
  const uint64_t size_;
  absl::Status read_status_;
  std::string buffer_;
  absl::string_view window_;  // of buffer_ or of the text
  uint64_t window_offset_ = 0;
  size_t at_ = 0;
  bool saw_md5_ = false;
  // The open brackets of the value that is skipped.
  std::string open_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_JSON_STREAM_H_
