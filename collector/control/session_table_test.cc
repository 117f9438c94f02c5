// SPDX-License-Identifier: Apache-2.0
#include "collector/control/session_table.h"

#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::MakeIdentity;

std::vector<std::string> SameAs(const SessionTable& table,
                                const v1::Identity& identity) {
  std::vector<std::string> ids;
  for (const AgentSession* agent : table.SameAs(identity))
    ids.push_back(agent->id);
  return ids;
}

TEST(SessionTableTest, FindsWhatIsOfTheRankOrOfTheProcess) {
  SessionTable table(100, 1, false);
  table.Add("a", MakeIdentity("run", 3, 30), {});
  AgentSession* const b = table.Add("b", MakeIdentity("run", 3, 31), {});
  table.Add("c", MakeIdentity("run", -1, 32), {});
  table.Add("d", MakeIdentity("other", 3, 30), {});
  EXPECT_THAT(SameAs(table, MakeIdentity("run", 3, 99)), ElementsAre("a", "b"));
  EXPECT_THAT(SameAs(table, MakeIdentity("run", 3, 32)),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(SameAs(table, MakeIdentity("run", -1, 30)), ElementsAre("a"));
  EXPECT_THAT(SameAs(table, MakeIdentity("other", -1, 32)), ElementsAre());
  table.SetIdentity(b, MakeIdentity("run", 4, 31));
  EXPECT_THAT(SameAs(table, MakeIdentity("run", 3, 30)), ElementsAre("a"));
}

}  // namespace
}  // namespace rankprobe
