// SPDX-License-Identifier: Apache-2.0
// tensor_notes.json: facts about tensors of a step that dump.json, whose format
// is msprobe's, cannot hold (docs/formats.md, "Dump layout"). Names are those
// of a comparison's table, "_C.silu_and_mul.0.forward.input.0".
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

// The text for rows that are known to be written, and no other notes. A pure
// function; tensor_notes_json.h has the one for recorded calls.
std::string WrittenNotesJson(absl::Span<const std::string> rows);

struct TensorNote {
  // An argument that its operator writes: as an input it may hold uninitialized
  // memory.
  bool written = false;
  // For a DTensor: the sizes of the complete tensor; the record has those of a
  // part.
  std::vector<int64_t> global_shape;
};

// Immutable.
class TensorNotes {
 public:
  // Reads the notes in the directory of a dump; without a file there are none.
  // INVALID_ARGUMENT, in one line that names the file, if it is not a file of
  // rankprobe.
  static absl::StatusOr<TensorNotes> Read(FileSystem* file_system,
                                          const std::string& directory);

  // Null if nothing is known.
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
