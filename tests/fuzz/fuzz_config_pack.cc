// SPDX-License-Identifier: Apache-2.0
// A pack of config_check from anywhere, laid beside itself and beside a good
// one: a report, or one line that names the file. The first byte says what the
// others are: a zip file, or one member of a pack that is whole otherwise
// (nothing that is made up has the CRC that a zip file says).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "analysis/run_card/config_pack.h"
#include "analysis/testing/zip_text.h"
#include "tests/fuzz/memory_files.h"

namespace rankprobe::analysis {
namespace {

std::string PackOf(char kind, const std::string& text) {
  std::vector<testing::ZipPart> parts = {
      {"pip", "torch=2\n"},
      {"env", "{\"NCCL_ALGO\": \"Ring\"}"},
      {"hyperparameters/hyperparameters_static.json", "{\"lr\": 1}"},
      {"weights/step0/rank0/weight.json", "{}"},
      {"dataset/step0/rank0/dataset.json", "{}"},
      {"random/rank0.json", "{}"}};
  parts[static_cast<size_t>(static_cast<unsigned char>(kind)) % parts.size()]
      .content = text;
  for (testing::ZipPart& part : parts) part.deflated = false;
  return testing::ZipText(parts);
}

void Run(absl::string_view data) {
  if (data.empty()) return;
  const std::string rest(data.substr(1));
  MemoryFiles files;
  files.Set("x.zip", data[0] == 'z' ? rest : PackOf(data[0], rest));
  files.Set("good.zip", PackOf('\0', "torch=1\n"));
  for (const char* reference : {"x.zip", "good.zip"}) {
    const auto report = CompareConfigPacks(&files, "x.zip", reference);
    if (!report.ok()) {
      if (!absl::StartsWith(report.status().message(), "x.zip") ||
          absl::StrContains(report.status().message(), "\n"))
        std::abort();
      continue;
    }
    // Nothing differs from itself.
    if (reference[0] == 'x' && report->differences_size() > 0) std::abort();
    for (const std::string& text : report->unseen())
      if (absl::StrContains(text, "\n")) std::abort();
  }
}

}  // namespace
}  // namespace rankprobe::analysis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::analysis::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
