// SPDX-License-Identifier: Apache-2.0
// Findings of `diagnose` about a server's key-value cache.
#include "cli/client/cache_faults.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "analysis/run_card/run_card.h"
#include "analysis/testing/dump_text.h"
#include "cli/client/dump_diagnosis.h"
#include "cli/client/request_diagnosis.h"
#include "dump_format/dump_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kChanged[] =
    R"(block 12 of layers.1.attn: it changed between write and read: request \"a\" wrote it in step 3, request \"b\" reads its positions 0 to 31 from it)";

class CacheFaultsTest : public ::testing::Test {
 protected:
  void Step(int64_t step, const std::string& output,
            const std::string& facts) const {
    const std::string directory = absl::StrCat("d/step", step, "/rank0");
    dir_.Write(directory,
               {rankprobe::testing::Call("Torch.log.0.forward", "1", output)});
    dir_.WriteFile(
        absl::StrCat(directory, "/requests.json"),
        R"([{"from_entry":"Torch.log.0.forward","rows":1,"recorded":null,"requests":[{"id":"b","begin":0,"end":1,"position":32}]}])");
    if (!facts.empty()) {
      dir_.WriteFile(absl::StrCat(directory, "/run_card.json"),
                     absl::StrCat(R"({"kv cache":{)", facts, "}}"));
    }
  }
  DumpLayout Layout() const {
    return *FindDumps(files_.get(), dir_.path() + "/d", std::nullopt);
  }
  v1::DiagnoseReport OfRequest() const {
    DiagnosisReport report;
    const auto request =
        RequestInDump::Find(files_.get(), Layout(), dir_.path(), "b");
    EXPECT_TRUE(request.ok()) << request.status();
    EXPECT_TRUE(request->Diagnose(files_.get(), &report).ok());
    return report.Take();
  }
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  rankprobe::testing::DumpDir dir_;
};

TEST_F(CacheFaultsTest, AFaultIsNamedBeforeWhatComesOfIt) {
  Step(7, "NaN",
       absl::StrCat(R"("blocks checked":"4","step 7 fault 0":")", kChanged,
                    R"(")"));
  DiagnosisReport report;
  const std::string path = dir_.path() + "/d";
  ASSERT_TRUE(
      DiagnoseDump(files_.get(), {path, path, std::nullopt}, &report).ok());
  const v1::DiagnoseReport whole = report.Take();
  for (const v1::DiagnoseReport& said : {whole, OfRequest()}) {
    ASSERT_THAT(said.findings(), SizeIs(2));
    EXPECT_EQ(said.findings(0).by(), kCacheRule);
    EXPECT_EQ(said.findings(0).step(), 7);
    EXPECT_EQ(said.findings(0).rank(), 0);
    EXPECT_EQ(said.findings(0).name(), "block 12 of layers.1.attn");
    EXPECT_EQ(said.findings(0).sure(), "exact");
    EXPECT_THAT(said.findings(0).what(), HasSubstr("changed between write"));
    EXPECT_EQ(said.findings(1).by(), "overflow_check");
  }
}

TEST_F(CacheFaultsTest, AnotherRequestsFaultIsNotThisOnes) {
  Step(
      7, "2",
      R"("step 7 fault 0":"block 1 of all 2 layers: request \"bb\" reads it")");
  const auto read = ReadCacheFaults(files_.get(), Layout());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->faults, SizeIs(1));
  EXPECT_THAT(OfRequest().findings(), IsEmpty());
}

TEST_F(CacheFaultsTest, WhetherThereWasAWitnessIsSaid) {
  Step(7, "2", "");
  ASSERT_THAT(OfRequest().unjudged(), SizeIs(2));
  EXPECT_THAT(OfRequest().unjudged(0).what(), HasSubstr("had no witness"));
  Step(7, "2", R"("blocks checked":"4")");
  Step(8, "2", R"("blocks checked":"5")");
  ASSERT_THAT(OfRequest().unjudged(), SizeIs(1));
  EXPECT_THAT(OfRequest().unjudged(0).what(), HasSubstr("of its tokens"));
  EXPECT_THAT(OfRequest().healthy(0), HasSubstr("9 blocks"));
}

TEST_F(CacheFaultsTest, TheFirstTokenThatBrokeIsNamed) {
  Step(7, "2", "");
  const auto card = [&](absl::string_view facts) {
    dir_.WriteFile("d/step7/rank0/run_card.json",
                   absl::StrCat(R"({"tokens":{)", facts, "}}"));
    return OfRequest();
  };
  const v1::DiagnoseReport broken = card(
      R"("b why":"rule bad: token 2: log probability NaN",
         "b 000000":"[[0, 5, -1, 2, 4], [1, 6, -1, 2, 5]]",
         "b 000002":"[[2, 7, NaN, 2, 6]]","bb 000000":"[[0, 5, NaN, 2, 3]]")");
  ASSERT_THAT(broken.findings(), SizeIs(1));
  EXPECT_EQ(broken.findings(0).by(), "tokens");
  EXPECT_EQ(broken.findings(0).step(), 6);
  EXPECT_EQ(broken.findings(0).name(), "token 2");
  EXPECT_EQ(broken.findings(0).sure(), "exact");
  // The bound of a rule is a user's: a person judges it.
  const v1::DiagnoseReport bound = card(
      R"("b why":"rule flat: token 1: entropy 2, above 1","b 000001":"[[1, 6, -1, 2, 5]]")");
  ASSERT_THAT(bound.findings(), SizeIs(1));
  EXPECT_EQ(bound.findings(0).sure(), "likely");
  EXPECT_THAT(bound.findings(0).what(), HasSubstr("rule flat"));
  const v1::DiagnoseReport sound =
      card(R"("b why":"flagged by a user","b 000001":"[[1, 6, -1, 2, 5]]")");
  EXPECT_THAT(sound.findings(), IsEmpty());
  EXPECT_THAT(sound.healthy(0), HasSubstr("tokens 1 to 1"));
  // Text that is no list, as of a damaged file, is left out.
  EXPECT_THAT(card(R"("b why":"x","b 000001":"[[1, 6]]","b 2":"[")").findings(),
              IsEmpty());
}

TEST_F(CacheFaultsTest, FaultsAreNoSettingsThatDiffer) {
  Step(7, "2", R"("blocks checked":"4")");
  const DumpLayout one = Layout();
  auto same = analysis::CompareRunCards(files_.get(), one, one);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->facts_compared(), 0);
}

}  // namespace
}  // namespace rankprobe
