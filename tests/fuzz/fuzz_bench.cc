// Any bytes as the dump.json of a bench: an index of it, or a fault, no more.
#include <cstdint>
#include <cstdlib>

#include "agent/runtime/bench_reference.h"
#include "common/testing/fault_file_system.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::testing::FaultFileSystem fs;
  (void)fs.CreateDirectories("/b/step0/rank0");
  {
    auto file = fs.OpenForWrite("/b/step0/rank0/dump.json",
                                rankprobe::FileSystem::OpenMode::kCreateNew);
    if (!file.ok()) std::abort();
    (void)(*file)->Append(
        absl::string_view(reinterpret_cast<const char*>(data), size));
  }
  rankprobe::BenchReference bench;
  const absl::Status status = bench.LoadDirectory(&fs, "/b", 0, 0);
  if (!status.ok()) {
    if (bench.entries() != 0) std::abort();
    return 0;
  }
  rankprobe::v1::ValueList values;
  for (int i = 0; i < 4; ++i)
    values.add_items()->mutable_tensor()->mutable_checksum()->set_crc32(1);
  (void)bench.InputsMatch("f", values);
  (void)bench.Difference("f", values);
  return 0;
}
