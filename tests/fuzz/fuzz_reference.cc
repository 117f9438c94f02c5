// SPDX-License-Identifier: Apache-2.0
// Any bytes as the dump.json of a reference: an index of it, or a fault, no more.
#include <cstdint>
#include <cstdlib>

#include "agent/runtime/reference/reference_dump.h"
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
  rankprobe::ReferenceDump reference;
  const absl::Status status = reference.LoadDirectory(&fs, "/b", 0, 0);
  if (!status.ok()) {
    if (reference.entries() != 0) std::abort();
    return 0;
  }
  rankprobe::v1::ValueList values;
  for (int i = 0; i < 4; ++i)
    values.add_items()->mutable_tensor()->mutable_checksum()->set_crc32(1);
  (void)reference.InputsMatch("f", values);
  (void)reference.Difference("f", values);
  return 0;
}
