// SPDX-License-Identifier: Apache-2.0
// Facts of a run card, in the records.
#include <memory>
#include <string>
#include <vector>

#include "agent/runtime/testing/recorder_fixture.h"
#include "common/base/limits.h"

namespace rankprobe {
namespace {

class RunFactsTest : public testing::RecorderFixture {
 protected:
  static v1::RunFact Fact(const std::string& section, const std::string& name,
                          const std::string& value) {
    v1::RunFact fact;
    fact.set_section(section);
    fact.set_name(name);
    fact.set_value(value);
    return fact;
  }
  std::vector<const v1::RunCard*> Cards() const {
    std::vector<const v1::RunCard*> cards;
    for (const auto& entry : received_.records)
      if (entry.record.has_run_card())
        cards.push_back(&entry.record.run_card());
    return cards;
  }

  std::unique_ptr<Recorder> recorder_ =
      Make(R"({"dump_path": "d", "level": "L1", "step": [1]})");
};

TEST_F(RunFactsTest, OnlyInAStepThatIsRecorded) {
  recorder_->Start();
  EXPECT_FALSE(recorder_->reports().WantsFacts());
  recorder_->reports().RecordFacts({Fact("a", "b", "c")});
  recorder_->Step();
  recorder_->Start();
  EXPECT_TRUE(recorder_->reports().WantsFacts());
  recorder_->reports().RecordFacts({Fact("a", "b", "d")});
  recorder_->Stop();
  EXPECT_TRUE(recorder_->reports().WantsFacts()) << "until Step";
  recorder_->Step();
  EXPECT_FALSE(recorder_->reports().WantsFacts());
  ASSERT_EQ(Cards().size(), 1u);
  EXPECT_EQ(Cards()[0]->facts(0).value(), "d");
}

// Stop submits all records; after it there may be none at all.
TEST_F(RunFactsTest, NoFactsAreNoRecord) {
  recorder_->Step();
  recorder_->Start();
  recorder_->Stop();
  recorder_->reports().RecordFacts({});
  recorder_->reports().RecordFacts({Fact("", "", "")});
  recorder_->Step();
  EXPECT_TRUE(Cards().empty());
}

TEST_F(RunFactsTest, TextsAreCutAtTheLimitsAndRecordsFitAFrame) {
  recorder_->Step();
  recorder_->Start();
  std::vector<v1::RunFact> facts(
      300, Fact(std::string(100, 's'), std::string(2000, 'n'),
                // A character of two bytes is not cut in two.
                std::string(kMaxFactValueBytes - 1, 'v') + "\xc3\xa9"));
  facts.push_back(Fact("", "no section", "x"));
  facts.push_back(Fact("no name", "", "x"));
  recorder_->reports().RecordFacts(facts);
  recorder_->Step();
  int count = 0;
  for (const v1::RunCard* card : Cards()) {
    EXPECT_LT(card->ByteSizeLong(), kMaxRecordBytes);
    count += card->facts_size();
    for (const v1::RunFact& fact : card->facts()) {
      EXPECT_EQ(fact.section().size(), kMaxFactSectionBytes);
      EXPECT_EQ(fact.name().size(), kMaxFactNameBytes);
      EXPECT_EQ(fact.value(), std::string(kMaxFactValueBytes - 1, 'v'));
    }
  }
  EXPECT_EQ(count, 300);
}

}  // namespace
}  // namespace rankprobe
