// A .pt file from anywhere, and the pickle inside one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/fuzz/memory_files.h"
#include "analysis/pickle_tensor.h"
#include "analysis/pt_reader.h"

namespace rankprobe::analysis {
namespace {

void Run(absl::string_view data) {
  (void)ParseTensorPickle(data);
  MemoryFiles files;
  files.Set("x.pt", data);
  const auto tensor = OpenPt(&files, "x.pt");
  if (!tensor.ok()) return;
  std::vector<double> values(
      static_cast<size_t>(std::min<int64_t>(tensor->elements, 4096)));
  (void)tensor->Read(0, absl::MakeSpan(values));
}

}  // namespace
}  // namespace rankprobe::analysis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::analysis::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
