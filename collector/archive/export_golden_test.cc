// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <string>

#include "collector/archive/export.h"
#include "collector/archive/testing/export_fixture.h"
#include "collector/testing/dump_importer.h"
#include "collector/testing/frames.h"
#include "common/testing/source_tree.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::ExportTest;
using testing::Frames;
using testing::ImportDump;
using testing::MakeIdentity;
using testing::ReadTextFile;

struct Golden {
  const char* name;
  const char* directory;
};

class GoldenExport : public ExportTest,
                     public ::testing::WithParamInterface<Golden> {};

// A dump made by msprobe is exported with the same bytes after it was converted
// to records and stored.
TEST_P(GoldenExport, IsByteExact) {
  const std::string golden = testing::GoldenDir() + "/dumps/" +
                             GetParam().name + "/step0/" + GetParam().directory;
  const std::string directory = GetParam().directory;
  v1::Identity identity = MakeIdentity("run", -1, 77);
  if (directory.substr(0, 4) == "rank") {
    identity.set_rank(std::stoll(directory.substr(4)));
  } else {
    identity.set_pid(std::stoll(directory.substr(4)));
  }
  Frames frames(identity);
  ImportDump(golden, 0, "./dump", &frames);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->OpenIncarnation(identity).ok());
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const v1::ExportDone done = Export(store.get(), "run");
  EXPECT_EQ(done.gaps(), 0u);
  EXPECT_EQ(done.incomplete_steps(), 0u);
  const std::string out = root_ + "/out/step0/" + directory;
  int compared = 0;
  for (const char* file :
       {"dump.json", "stack.json", "construct.json", "debug.json"}) {
    const std::string want = golden + "/" + file;
    ASSERT_EQ(std::filesystem::exists(want),
              std::filesystem::exists(out + "/" + file))
        << file;
    if (!std::filesystem::exists(want)) continue;
    EXPECT_TRUE(ReadTextFile(out + "/" + file) == ReadTextFile(want)) << file;
    ++compared;
  }
  EXPECT_GE(compared, 1);
}

// There is no xor dump: msprobe writes 0-dim tensors of that mode as plain
// numbers, we as checksums (docs/pytorch.md, "What differs from msprobe, and
// why").
INSTANTIATE_TEST_SUITE_P(
    Dumps, GoldenExport,
    ::testing::Values(Golden{"cnn_stat_mix", "proc27098"},
                      Golden{"weird_stat_mix", "proc27105"},
                      Golden{"cnn_md5_mix", "proc27146"},
                      Golden{"cnn_tensor_md5_mix", "proc27141"},
                      Golden{"save_debug_tensor", "proc29761"},
                      Golden{"ddp_stat_mix", "rank1"},
                      Golden{"cnn_stat_L1", "proc27078"},
                      Golden{"cnn_extra_info_false", "proc27775"},
                      Golden{"cnn_structure", "proc27185"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace rankprobe
