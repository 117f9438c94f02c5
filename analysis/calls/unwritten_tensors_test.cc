// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/unwritten_tensors.h"

#include <memory>

#include "dump_format/testing/testing_files.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

DumpRow Row(absl::string_view name, RowState state) {
  DumpRow row;
  row.name = name;
  row.state = state;
  return row;
}

TEST(UnwrittenTensorsTest, ByNotesAndByName) {
  rankprobe::testing::TempDir dir;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  dir.Write("tensor_notes.json", R"({
    "_C.mul.0.forward.input.0": {"written": true},
    "_C.mul.0.forward.input.out.0": {"written": true},
    "_C.mul.1.forward.input.1": {"written": false}})");
  const auto notes = TensorNotes::Read(files.get(), dir.path());
  ASSERT_TRUE(notes.ok()) << notes.status();
  const UnwrittenTensors call("_C.mul.0.forward", &*notes);
  EXPECT_TRUE(call.HasInput("0") && call.HasInput("out"));
  EXPECT_FALSE(call.HasInput("1") || call.HasOutput("0"));
  EXPECT_TRUE(call.Has(Row("_C.mul.0.forward.input.0", RowState::kInput)));
  EXPECT_TRUE(call.Has(Row("_C.mul.0.forward.input.out.1", RowState::kInput)));
  EXPECT_FALSE(call.Has(Row("_C.mul.0.forward.input.1", RowState::kInput)));
  EXPECT_FALSE(call.Has(Row("_C.mul.0.forward.output.0", RowState::kOutput)));
  EXPECT_FALSE(call.Has(Row("other.input.0", RowState::kInput)));
  const UnwrittenTensors next("_C.mul.1.forward", &*notes);
  EXPECT_FALSE(next.HasInput("0") || next.HasInput("1"));

  const UnwrittenTensors empty("Torch.empty.0.forward", &*notes);
  EXPECT_TRUE(
      empty.Has(Row("Torch.empty.0.forward.output.0", RowState::kOutput)));
  const UnwrittenTensors copy("Tensor.copy_.0.forward", &*notes);
  EXPECT_TRUE(
      copy.Has(Row("Tensor.copy_.0.forward.input.0", RowState::kInput)));
  EXPECT_FALSE(
      copy.Has(Row("Tensor.copy_.0.forward.input.1", RowState::kInput)));
}

}  // namespace
}  // namespace rankprobe::analysis
