// SPDX-License-Identifier: Apache-2.0
// Printed text has the names that the user gave, not temporary directories.
#include "cli/output/given_names.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/output/output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

TEST(GivenNamesTest, PlacesHaveTheNamesThatTheUserGave) {
  NameTemporary("/tmp/given_names_test/dump", "run:a@b", GivenForm::kRun);
  NameTemporary("/tmp/given_names_test/joined", "/tmp/given_names_test/dump",
                GivenForm::kSteps);
  NameTemporary("/tmp/given_names_test/one", "good/step5", GivenForm::kOneStep);
  const std::string base = "/tmp/given_names_test";
  for (const auto& [text, named] :
       {std::pair("/dump/step5/rank0/dump.json: x", "run:a@b@5/rank0: x"),
        std::pair("/dump/step5: x", "run:a@b@5: x"),
        std::pair("/dump/step5/proc71/dump.json", "run:a@b@5/proc71"),
        std::pair("/dump: x", "run:a@b: x"),
        std::pair("/dump/manifest.json", "run:a@b/manifest.json"),
        std::pair("/dump/steps", "run:a@b/steps"),
        std::pair("/joined/step5/rank0/dump.json: x", "run:a@b@5: x"),
        std::pair("/one/step0/rank0/dump.json: x", "good/step5: x")}) {
    EXPECT_EQ(WithGivenNames(base + text), named);
    EXPECT_EQ(WithGivenNames("in " + base + text + " and " + base + text),
              absl::StrCat("in ", named, " and ", named));
  }
  EXPECT_EQ(WithGivenNames("/tmp/other/dump/step5"), "/tmp/other/dump/step5");
  v1::CompareReport report;
  report.add_unpaired(base + "/dump/step5/rank1");
  EXPECT_THAT(ToJson(report), HasSubstr("\"run:a@b@5/rank1\""));
  ::testing::internal::CaptureStdout();
  Print(stdout, "%s\n", base + "/dump/step5/rank1");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "run:a@b@5/rank1\n");
}

}  // namespace
}  // namespace rankprobe
