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

// Of a dump that was opened with construct.json; without it calls have no
// modules. Immutable.
class CallPlaces {
 public:
  explicit CallPlaces(const DumpReader& dump ABSL_ATTRIBUTE_LIFETIME_BOUND);
  // Entries from the outermost module to `call` itself.
  std::vector<std::string> ChainOf(absl::string_view call) const;
  // The innermost module around the call, or that it is, as the model names it:
  // "blocks.2.attn (Attention)". Empty when that is not known.
  std::string ModuleOf(absl::string_view call) const;

 private:
  // Both point into the reader.
  absl::flat_hash_map<absl::string_view, absl::string_view> parents_;
};

// "blocks.2.attn (Attention)" of "Module.blocks.2.attn.Attention.forward.0".
std::string ModuleText(absl::string_view entry);

// The frames of a stack, innermost first, that are not of PyTorch's own files; the
// innermost alone where all are.
std::vector<std::string> OwnFrames(const std::vector<std::string>& stack);

// "gpt.py:36 in forward: torch.log(lens)": the first of OwnFrames(). Empty without
// a stack.
std::string CodeLineOf(const std::vector<std::string>* stack);

// Opens a dump for CallPlaces: with construct.json, unless that is absent, empty
// or cannot be read, which only costs the modules.
absl::StatusOr<std::unique_ptr<DumpReader>> OpenWithModules(
    FileSystem* file_system, const std::string& directory,
    DumpReader::Options options);

// The step that a directory of one step is named after: alone it is step 0 of
// its layout.
int64_t StepOf(const DumpPlace& place);
// The same of the rank: a directory of one rank alone is rank 0 of its layout.
int64_t RankOf(const DumpPlace& place);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_CALL_PLACE_H_
