// SPDX-License-Identifier: Apache-2.0
// tensor_notes.json: what is known of tensors of a step and has no place in
// dump.json, which is msprobe's (docs/formats.md, "Dump layout"). Names are
// those of a comparison's table, "_C.silu_and_mul.0.forward.input.0".
#ifndef RANKPROBE_DUMP_FORMAT_TENSOR_NOTES_H_
#define RANKPROBE_DUMP_FORMAT_TENSOR_NOTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/file_system.h"

namespace rankprobe {

// The text of rows that are known to be written, and of nothing else. A pure
// function; tensor_notes_json.h has that of recorded calls.
std::string WrittenNotesJson(absl::Span<const std::string> rows);

struct TensorNote {
  // An argument that its operator writes: as an input it may hold what lay in
  // that memory before.
  bool written = false;
  // Of a DTensor: the sizes of the whole, of which the record's shape is a part.
  std::vector<int64_t> global_shape;
};

// Immutable.
class TensorNotes {
 public:
  // Of the directory of a dump; without a file there are none.
  // INVALID_ARGUMENT, in one line that names the file, when it is none of ours.
  static absl::StatusOr<TensorNotes> Read(FileSystem* file_system,
                                          const std::string& directory);

  // Null: nothing is known.
  const TensorNote* Find(absl::string_view row) const;
  bool Written(absl::string_view row) const {
    const TensorNote* const note = Find(row);
    return note != nullptr && note->written;
  }

 private:
  absl::flat_hash_map<std::string, TensorNote> notes_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_TENSOR_NOTES_H_
