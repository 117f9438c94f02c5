// SPDX-License-Identifier: Apache-2.0
// Place of a call in the program: the modules around it and its line of code,
// for answers that people read.
#ifndef RANKPROBE_ANALYSIS_CALLS_CALL_PLACE_H_
#define RANKPROBE_ANALYSIS_CALLS_CALL_PLACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

// Module chains of the calls of a dump. Requires a dump opened with
// construct.json; without it, calls have no modules. Immutable.
class CallPlaces {
 public:
  explicit CallPlaces(const DumpReader& dump ABSL_ATTRIBUTE_LIFETIME_BOUND);
  // Returns the entries from the outermost module to `call` itself.
  std::vector<std::string> ChainOf(absl::string_view call) const;
  // Returns the innermost module that contains the call, or the call itself if
  // it is a module, by its name in the model: "blocks.2.attn (Attention)".
  // Empty if unknown.
  std::string ModuleOf(absl::string_view call) const;

 private:
  // Keys and values point into the reader.
  absl::flat_hash_map<absl::string_view, absl::string_view> parents_;
};

// Returns "blocks.2.attn (Attention)" for
// "Module.blocks.2.attn.Attention.forward.0".
std::string ModuleText(absl::string_view entry);

// Returns the frames of a stack, innermost first, without those in PyTorch's
// own files. If all frames are in PyTorch, returns only the innermost.
std::vector<std::string> OwnFrames(const std::vector<std::string>& stack);

// Returns the first of OwnFrames(), as in "gpt.py:36 in forward:
// torch.log(lens)", or an empty text without a stack.
std::string CodeLineOf(const std::vector<std::string>* stack);

// Opens a dump for CallPlaces, with construct.json if it can be read and is not
// empty. Without it only the modules are missing.
absl::StatusOr<std::unique_ptr<DumpReader>> OpenWithModules(
    FileSystem* file_system, const std::string& directory,
    DumpReader::Options options);

// Returns the step in the name of the directory, because a directory of one
// step that is opened alone is step 0 of its layout.
int64_t StepOf(const DumpPlace& place);
// Like StepOf() for the rank: a directory of one rank that is opened alone is
// rank 0 of its layout.
int64_t RankOf(const DumpPlace& place);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_CALL_PLACE_H_
