// SPDX-License-Identifier: Apache-2.0
// The files of an alignment: rows of a step as they are read, and a step as it
// is written. Not thread-safe.
#ifndef RANKPROBE_ANALYSIS_ALIGN_STEP_FILES_H_
#define RANKPROBE_ANALYSIS_ALIGN_STEP_FILES_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "analysis/align/aligned_tensor.h"
#include "analysis/align/token_rows.h"
#include "common/io/file_system.h"
#include "common/text/json_text.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"

namespace rankprobe::analysis {

// Rows of one step of one side, read when they are asked for and kept. `step`
// outlives it.
class StepRows {
 public:
  static absl::StatusOr<std::unique_ptr<StepRows>> Open(FileSystem* file_system,
                                                        const StepTokens& step);

  const DumpReader& dump() const { return *dump_; }
  const StepTokens& step() const { return *step_; }

  absl::StatusOr<absl::Span<const DumpRow>> EntryRows(size_t index);
  // Null: the step has none of this name.
  absl::StatusOr<const DumpRow*> Find(absl::string_view name);
  // FAILED_PRECONDITION: it is not there, or no tensor. `dtype`: what it is to
  // be, DTYPE_UNSPECIFIED for its own.
  absl::StatusOr<AlignedTensor> Tensor(const DumpRow& row, v1::DType dtype,
                                       bool payload);

 private:
  struct Kept {
    JsonDocument record;
    std::vector<DumpRow> rows;
  };
  StepRows(FileSystem* file_system, const StepTokens* step,
           std::unique_ptr<DumpReader> dump)
      : file_system_(file_system), step_(step), dump_(std::move(dump)) {}

  FileSystem* const file_system_;
  const StepTokens* const step_;
  const std::unique_ptr<DumpReader> dump_;
  std::map<size_t, std::unique_ptr<Kept>> kept_;
};

// One rank's step as it is written: Begin, entries with their rows, End.
class StepWriter {
 public:
  StepWriter(FileSystem* file_system, std::string directory, bool payloads)
      : file_system_(file_system),
        directory_(std::move(directory)),
        data_(directory_ + "/dump_tensor_data"),
        payloads_(payloads) {}

  absl::Status Begin(const DumpReader& target);
  void BeginEntry(absl::string_view name);
  // Rows come section by section; `name` is that of the row in all, `of` what
  // it was made of, or empty.
  absl::Status Row(absl::string_view section, absl::string_view place,
                   absl::string_view name, const AlignedTensor& tensor,
                   absl::string_view of);
  void EndEntry();
  // `from`: where stack.json and construct.json of the target are.
  absl::Status End(const std::string& from);

 private:
  absl::Status Write(absl::string_view name, absl::string_view text);
  absl::Status WritePt(const std::string& name, const AlignedTensor& tensor);

  FileSystem* const file_system_;
  const std::string directory_;
  const std::string data_;
  const bool payloads_;
  std::string text_;
  JsonTextWriter json_{&text_};
  std::string section_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_STEP_FILES_H_
