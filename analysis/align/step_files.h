// SPDX-License-Identifier: Apache-2.0
// The files of an alignment: a reader of a step's rows and a writer of an
// aligned step. Not thread-safe.
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

// Rows of one step of one side. They are read on first use and kept. `step`
// outlives this object.
class StepRows {
 public:
  static absl::StatusOr<std::unique_ptr<StepRows>> Open(FileSystem* file_system,
                                                        const StepTokens& step);

  const DumpReader& dump() const { return *dump_; }
  const StepTokens& step() const { return *step_; }

  absl::StatusOr<absl::Span<const DumpRow>> EntryRows(size_t index);
  // Returns null if the step has no row of this name.
  absl::StatusOr<const DumpRow*> Find(absl::string_view name);
  // Reads the tensor of `row` as `dtype`; DTYPE_UNSPECIFIED keeps its own type.
  // Returns FAILED_PRECONDITION if the tensor is missing or the value is not a
  // tensor.
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

// Writes one rank's step: Begin, then entries with their rows, then End.
class StepWriter {
 public:
  StepWriter(FileSystem* file_system, std::string directory, bool payloads)
      : file_system_(file_system),
        directory_(std::move(directory)),
        data_(directory_ + "/dump_tensor_data"),
        payloads_(payloads) {}

  absl::Status Begin(const DumpReader& target);
  void BeginEntry(absl::string_view name);
  // Adds a row; rows come section by section. `name` is the complete name of
  // the row; `of` names the rows it was made of, or is empty.
  absl::Status Row(absl::string_view section, absl::string_view place,
                   absl::string_view name, const AlignedTensor& tensor,
                   absl::string_view of);
  void EndEntry();
  // Completes the step. `from` is the directory with stack.json and
  // construct.json of the target.
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
