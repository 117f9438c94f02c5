// SPDX-License-Identifier: Apache-2.0
// A golden run is exported from a collector's own archive, and from its sealed
// objects: the same files with the same bytes. Always from a directory, and
// from the bucket that RANKPROBE_TEST_S3_URL names if it is set
// (tests/stages/scale.sh).
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/archive/export.h"
#include "collector/archive/ledger.h"
#include "collector/archive/query_series.h"
#include "collector/object_store/open_object_store.h"
#include "collector/sealed/sealed_reader.h"
#include "collector/sealed/sealer.h"
#include "collector/sealed/testing/sealed_fixture.h"
#include "collector/testing/dump_importer.h"
#include "common/base/random_bytes.h"
#include "common/testing/source_tree.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::ImportDump;
using testing::MakeIdentity;

struct GoldenRun {
  const char* name;
  const char* directory;
};

constexpr GoldenRun kGoldenRuns[] = {
    {"cnn_stat_mix", "proc27098"},      {"weird_stat_mix", "proc27105"},
    {"cnn_md5_mix", "proc27146"},       {"cnn_tensor_md5_mix", "proc27141"},
    {"save_debug_tensor", "proc29761"}, {"ddp_stat_mix", "rank1"},
    {"cnn_stat_L1", "proc27078"},       {"cnn_extra_info_false", "proc27775"},
    {"cnn_structure", "proc27185"}};

std::vector<std::string> StoreKinds() {
  std::vector<std::string> kinds = {"directory"};
  if (std::getenv("RANKPROBE_TEST_S3_URL") != nullptr) kinds.push_back("s3");
  return kinds;
}

class SealedExport : public testing::TempDirTest,
                     public ::testing::WithParamInterface<std::string> {
 protected:
  void Export(ArchiveReader* archive, const std::string& run,
              const std::string& directory) {
    ExportOptions options;
    options.run = run;
    const auto done =
        ExportRunToDirectory(archive, options, file_system_.get(), directory);
    ASSERT_TRUE(done.ok()) << done.status();
  }
};

TEST_P(SealedExport, HasTheBytesOfTheCollectorsOwn) {
  SystemClock clock;
  ObjectStoreOptions store_options;
  store_options.make_directory = true;
  store_options.url = GetParam() == "s3"
                          ? std::string(std::getenv("RANKPROBE_TEST_S3_URL"))
                          : root_ + "/objects";
  auto objects = OpenObjectStore(store_options, ProcessEnvironment(),
                                 file_system_.get(), &clock);
  ASSERT_TRUE(objects.ok()) << objects.status();
  std::unique_ptr<Store> store = OpenStore();
  // Other tests use the same bucket.
  const std::string mark =
      absl::BytesToHexString(::rankprobe::RandomBytes(size_t{6}));
  std::vector<std::string> runs;
  for (const GoldenRun& golden : kGoldenRuns) {
    const std::string run = absl::StrCat(golden.name, " ", mark);
    v1::Identity identity = MakeIdentity(run, -1, 77);
    const std::string directory = golden.directory;
    if (directory.substr(0, 4) == "rank") {
      identity.set_rank(std::stoll(directory.substr(4)));
    } else {
      identity.set_pid(std::stoll(directory.substr(4)));
    }
    Frames frames(identity);
    ImportDump(absl::StrCat(testing::GoldenDir(), "/dumps/", golden.name,
                            "/step0/", directory),
               0, "./dump", &frames);
    ASSERT_TRUE(store->OpenIncarnation(identity).ok());
    ASSERT_TRUE(store->Commit(frames.All()).ok());
    runs.push_back(run);
  }
  SealerOptions options;
  options.directory = root_ + "/data/sealing";
  auto sealer = Sealer::Open(options, store.get(), objects->get(),
                             file_system_.get(), &clock_);
  ASSERT_TRUE(sealer.ok()) << sealer.status();
  Sealer::Report report;
  ASSERT_EQ((*sealer)->SealReady([] { return false; }, &report),
            absl::OkStatus());
  EXPECT_EQ(report.sets, runs.size());
  SealedReader reader(objects->get());
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string own = absl::StrCat(root_, "/own", i);
    const std::string sealed = absl::StrCat(root_, "/sealed", i);
    Export(store.get(), runs[i], own);
    Export(&reader, runs[i], sealed);
    EXPECT_GE(testing::TreeOf(own).size(), 2u);
    testing::ExpectSameTree(own, sealed);
    // The ledgers are equal too, step by step.
    const auto a = store->ListSteps(runs[i]);
    const auto b = reader.ListSteps(runs[i]);
    ASSERT_TRUE(a.ok() && b.ok());
    ASSERT_EQ(a->size(), b->size());
    for (size_t k = 0; k < a->size(); ++k) {
      EXPECT_EQ((*a)[k].SerializeAsString(), (*b)[k].SerializeAsString());
      EXPECT_EQ(
          AccountStep(store.get(), runs[i], (*a)[k], {})->SerializeAsString(),
          AccountStep(&reader, runs[i], (*b)[k], {})->SerializeAsString());
    }
  }
  // Names are those of rollups, which are not sealed: the answer says so.
  v1::ListModulesRequest names;
  names.set_run(runs[0]);
  names.set_rows(v1::GRID_ROWS_MODULE);
  const auto listed = ListModules(QuerySources(&reader, nullptr), names);
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(listed->modules_size(), 0);
  EXPECT_EQ(listed->unrolled_rank_steps(), 1u);
  if (GetParam() != "s3") return;
  // The bucket is left as it was.
  for (const std::string& run : runs) {
    const std::string key = sealed::RunKey(run);
    const auto list =
        (*objects)->List(absl::StrCat("v1/runs/", key, "/"), "", 1000);
    ASSERT_TRUE(list.ok());
    for (const ObjectInfo& object : list->objects)
      EXPECT_TRUE((*objects)->Delete(object.key).ok());
    EXPECT_TRUE((*objects)->Delete(sealed::NameKey(key)).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, SealedExport,
                         ::testing::ValuesIn(StoreKinds()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace rankprobe
