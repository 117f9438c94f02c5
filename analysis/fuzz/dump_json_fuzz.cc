// dump.json, stack.json and construct.json from anywhere: whatever the bytes,
// reading ends with a value or an error.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "analysis/dump_reader.h"
#include "analysis/fuzz/memory_files.h"
#include "analysis/graph.h"
#include "analysis/overflow_levels.h"
#include "analysis/rows.h"

namespace rankprobe::analysis {
namespace {

void Run(absl::string_view data) {
  // Three files in one input, parted by a byte that JSON does not have.
  MemoryFiles files;
  const char* const names[] = {"d/dump.json", "d/construct.json",
                               "d/stack.json"};
  for (const char* const name : names) {
    const size_t end = data.find('\xff');
    files.Set(name, data.substr(0, end));
    data = end == absl::string_view::npos ? absl::string_view()
                                          : data.substr(end + 1);
  }
  for (const bool construct : {false, true}) {
    DumpReader::Options options;
    options.construct = construct;
    const auto dump = DumpReader::Open(&files, "d", options);
    if (!dump.ok()) continue;
    JsonDocument record;
    std::vector<Row> rows;
    for (size_t i = 0; i < (*dump)->size(); ++i) {
      if (!(*dump)->Read(i, &record).ok()) continue;
      (void)ReadRows((*dump)->name(i), &record, &rows);
      (void)OverflowLevel((*dump)->name(i), record.root());
    }
    if (construct) (void)Graph::Build(**dump);
  }
}

}  // namespace
}  // namespace rankprobe::analysis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::analysis::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
