// SPDX-License-Identifier: Apache-2.0
#include "collector/control/agent_index.h"

#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::MakeIdentity;

TEST(AgentIndexTest, FindsWhatIsOfTheRankOrOfTheProcess) {
  AgentIndex index;
  index.Add("a", MakeIdentity("run", 3, 30));
  index.Add("b", MakeIdentity("run", 3, 31));
  index.Add("c", MakeIdentity("run", -1, 32));
  index.Add("d", MakeIdentity("other", 3, 30));
  EXPECT_THAT(index.Find(MakeIdentity("run", 3, 99)), ElementsAre("a", "b"));
  EXPECT_THAT(index.Find(MakeIdentity("run", 3, 32)),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(index.Find(MakeIdentity("run", -1, 30)), ElementsAre("a"));
  EXPECT_THAT(index.Find(MakeIdentity("other", -1, 32)), IsEmpty());
  index.Remove("a", MakeIdentity("run", 3, 30));
  // Not with another's identity.
  index.Remove("b", MakeIdentity("run", 4, 41));
  EXPECT_THAT(index.Find(MakeIdentity("run", 3, 30)), ElementsAre("b"));
}

TEST(AgentIndexTest, CountsWhatAPrincipalHolds) {
  AgentIndex index;
  index.Hold("one");
  index.Hold("one");
  index.Hold("two");
  index.LetGo("one");
  index.LetGo("nobody");
  EXPECT_EQ(index.CountHeld("one"), 1u);
  EXPECT_EQ(index.CountHeld("two"), 1u);
  EXPECT_EQ(index.CountHeld("nobody"), 0u);
}

}  // namespace
}  // namespace rankprobe
