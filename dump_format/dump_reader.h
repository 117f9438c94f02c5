// SPDX-License-Identifier: Apache-2.0
// One rank's step of the dump layout: dump.json (or debug.json), stack.json of
// both generations, construct.json. Opening makes an index of the entries;
// records are read on demand, so a file may be larger than memory. After Open
// a reader is immutable and thread-safe. Every error is one line that names
// the file; what the file holds is never trusted.
#ifndef RANKPROBE_DUMP_FORMAT_DUMP_READER_H_
#define RANKPROBE_DUMP_FORMAT_DUMP_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"
#include "dump_format/json_value.h"
#include "dump_format/statistics.h"
#include "dump_format/tensor_notes.h"

namespace rankprobe {

// The data of a dump that comparisons can use.
enum class DumpMode { kStatistics, kMd5, kTensor, kStructure };

absl::string_view DumpModeName(DumpMode mode);  // "summary", "md5", "all", ..

struct ConstructEdge {
  std::string child;
  std::optional<std::string> parent;
  std::optional<int64_t> micro_step;  // Megatron writes [parent, micro step]
};

class DumpReader {
 public:
  struct Options {
    bool debug = false;      // debug.json instead of dump.json
    bool construct = false;  // construct.json is needed and must not be empty
    // A file of up to 32 MiB stays in memory, and records read from it point
    // into the reader. For callers that read every record.
    bool keep_text = false;
    bool notes = false;  // tensor_notes.json, where there is one
    // After the entries of dump.json, also read those that task monitor writes
    // into the debug.json in the same directory: parameters, updates, buffers,
    // loss.
    bool monitored = false;
  };
  // Opens the files in `directory`. stack.json may be absent.
  static absl::StatusOr<std::unique_ptr<DumpReader>> Open(
      FileSystem* file_system, const std::string& directory, Options options);

  const std::string& directory() const { return directory_; }
  // Path of the JSON file with the records.
  const std::string& path() const { return path_; }
  const std::string& task() const { return task_; }
  const std::string& level() const { return level_; }
  const std::string& framework() const { return framework_; }
  // Whether the dump was assembled from the ranks of a run (analysis/layout).
  bool put_together() const { return put_together_; }
  // Directory of the .pt files; empty without real data. In a dump that was
  // moved it is next to the JSON file.
  const std::string& data_dir() const { return data_dir_; }
  DumpMode mode() const { return mode_; }
  // The statistics that its tensors have.
  StatSet stats() const { return stats_; }
  bool debug() const { return debug_; }

  size_t size() const { return entries_.size() + monitored_.size(); }
  absl::string_view name(size_t index) const;
  std::optional<size_t> Find(absl::string_view name) const;
  // Parses the record of an entry; INVALID_ARGUMENT with file and entry if it
  // is malformed.
  absl::Status Read(size_t index, JsonDocument* record) const;

  bool has_stack() const { return has_stack_; }
  // Innermost frame first. Null if the entry has no stack.
  const std::vector<std::string>* Stack(absl::string_view name) const;
  // An id that equal stacks share.
  std::optional<uint32_t> StackId(absl::string_view name) const;
  const std::vector<std::vector<std::string>>& stacks() const {
    return stacks_;
  }

  const std::vector<ConstructEdge>& construct() const { return construct_; }
  // Megatron: number of micro steps of this step; 0 if the file does not have
  // it.
  int64_t micro_step_count() const { return micro_step_count_; }
  // Empty unless they were requested.
  const TensorNotes& notes() const { return notes_; }

 private:
  struct Entry {
    uint64_t name_begin = 0;
    uint32_t name_length = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  DumpReader(FileSystem* file_system, std::string directory, Options options);
  absl::Status Load(Options options);
  absl::Status LoadIndex();
  absl::Status IndexEntries(class JsonStream* stream, struct DumpHead* head);
  absl::Status LoadStacks();
  absl::Status AddStack(absl::string_view key, const JsonValue& value);
  absl::Status LoadConstruct();
  absl::Status LoadMonitored(Options options);
  absl::Status ResolveDataDir(const std::string& dump_data_dir);
  absl::Status InFile(const std::string& path,
                      const absl::Status& status) const;
  absl::Status ParseSlice(uint64_t begin, uint64_t end,
                          JsonDocument* document) const;

  FileSystem* const file_system_;
  const std::string directory_;
  const bool debug_;
  std::string path_;
  std::unique_ptr<RandomAccessFile> file_;
  const bool keep_text_;
  // The complete file, or empty.
  std::unique_ptr<char[]> kept_;
  absl::string_view text_;
  std::string task_;
  std::string level_;
  std::string framework_;
  bool put_together_ = false;
  std::string data_dir_;
  DumpMode mode_ = DumpMode::kStatistics;
  StatSet stats_;
  std::string names_;
  std::vector<Entry> entries_;
  // Keys point into names_.
  absl::flat_hash_map<absl::string_view, uint32_t> by_name_;
  bool has_stack_ = false;
  std::vector<std::vector<std::string>> stacks_;
  absl::flat_hash_map<std::string, uint32_t> stack_of_;
  std::vector<ConstructEdge> construct_;
  int64_t micro_step_count_ = 0;
  TensorNotes notes_;
  // The debug.json, and which of its entries were requested.
  std::unique_ptr<DumpReader> beside_;
  std::vector<size_t> monitored_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_DUMP_READER_H_
