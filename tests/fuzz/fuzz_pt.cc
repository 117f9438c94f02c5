// SPDX-License-Identifier: Apache-2.0
// A .pt or .npy file from anywhere, and the pickle inside the first: a tensor whose values
// can be read, or one line that names the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/strings/match.h"
#include "dump_format/pickle_tensor.h"
#include "dump_format/pt_reader.h"
#include "tests/fuzz/memory_files.h"

namespace rankprobe::analysis {
namespace {

void CheckPickle(absl::string_view data) {
  const auto tensor = ParseTensorPickle(data);
  if (!tensor.ok()) return;
  if (tensor->shape.size() != tensor->stride.size() || tensor->offset < 0) {
    std::abort();
  }
}

void CheckFile(const char* name, absl::string_view data) {
  MemoryFiles files;
  files.Set(name, data);
  const auto tensor = OpenPt(&files, name);
  if (!tensor.ok()) {
    if (!absl::StrContains(tensor.status().message(), name) ||
        absl::StrContains(tensor.status().message(), "\n")) {
      std::abort();
    }
    return;
  }
  constexpr int64_t kWindow = 4096;
  std::vector<double> values(
      static_cast<size_t>(std::min(tensor->elements, kWindow)));
  // The first elements and the last.
  tensor->Read(0, absl::MakeSpan(values)).IgnoreError();
  tensor
      ->Read(tensor->elements - static_cast<int64_t>(values.size()),
             absl::MakeSpan(values))
      .IgnoreError();
}

void Run(absl::string_view data) {
  CheckPickle(data);
  CheckFile("x.pt", data);
  CheckFile("x.npy", data);
}

}  // namespace
}  // namespace rankprobe::analysis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::analysis::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
