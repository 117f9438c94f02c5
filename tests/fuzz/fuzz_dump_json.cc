// SPDX-License-Identifier: Apache-2.0
// dump.json, stack.json and construct.json from anywhere: whatever the bytes,
// reading ends with a value or with one line that names the file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/strings/match.h"
#include "analysis/calls/call_tree.h"
#include "analysis/calls/comm_links.h"
#include "analysis/calls/overflow_levels.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"
#include "tests/fuzz/memory_files.h"

namespace rankprobe::analysis {
namespace {

void CheckFault(const absl::Status& status) {
  if (status.ok()) return;
  if (!absl::StrContains(status.message(), ".json") ||
      absl::StrContains(status.message(), "\n")) {
    std::abort();
  }
}

void UseGraph(const DumpReader& dump) {
  auto graph = Graph::Build(dump);
  CheckFault(graph.status());
  if (!graph.ok()) return;
  if (graph->PostOrder().size() != graph->nodes().size()) std::abort();
  graph->AssignMicroSteps(nullptr);
}

void Run(absl::string_view data) {
  // Three files in one input, parted by a byte that JSON does not have.
  MemoryFiles files;
  for (const char* const name :
       {"d/dump.json", "d/construct.json", "d/stack.json"}) {
    const size_t end = data.find('\xff');
    files.Set(name, data.substr(0, end));
    data = end == absl::string_view::npos ? absl::string_view()
                                          : data.substr(end + 1);
  }
  for (const bool construct : {false, true}) {
    DumpReader::Options options;
    options.construct = construct;
    const auto dump = DumpReader::Open(&files, "d", options);
    CheckFault(dump.status());
    if (!dump.ok()) continue;
    JsonDocument record;
    std::vector<DumpRow> rows;
    CommLinks links({0, 1});
    for (size_t i = 0; i < (*dump)->size(); ++i) {
      const absl::Status read = (*dump)->Read(i, &record);
      CheckFault(read);
      if (!read.ok()) continue;
      const absl::string_view name = (*dump)->name(i);
      ReadRows(name, (*dump)->stats(), &record, &rows).IgnoreError();
      OverflowLevel(name, record.root(), dump->get()->notes());
      if (IsCommunication(name)) links.Add(0, name, record.root());
    }
    links.Match();
    if (construct) UseGraph(**dump);
  }
}

}  // namespace
}  // namespace rankprobe::analysis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::analysis::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
