// SPDX-License-Identifier: Apache-2.0
// A rank whose collector ended connects to another: the data of both counts
// once.
#include "collector/sealed/unite.h"

#include <memory>
#include <set>
#include <string>

#include "collector/sealed/testing/sealer_fixture.h"
#include "collector/sealed/testing/whole_steps.h"

namespace rankprobe {
namespace {

using testing::AddStepInFrames;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::SealerTest;

class UniteTest : public SealerTest {
 protected:
  std::unique_ptr<Store> OpenLeaf(const std::string& name) {
    return OpenStore(testing::OptionsAt(root_ + "/" + name));
  }
  // Commits frames [first, last) there; those before are at another collector.
  static void Send(Store* leaf, const Frames& frames, size_t first,
                   size_t last) {
    ASSERT_TRUE(leaf->OpenIncarnation(frames.identity()).ok());
    if (first > 0)
      ASSERT_TRUE(leaf->NoteLostFrames(frames.identity(), first).ok());
    ASSERT_TRUE(leaf->Commit(frames.Range(first, last)).ok());
  }
  void Seal(Store* leaf, const std::string& name) {
    SealerOptions options;
    options.directory = root_ + "/" + name + "/sealing";
    options.quiet_time = absl::ZeroDuration();
    const auto sealer = OpenSealer(leaf, &objects_, options);
    ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  }
  v1::IncarnationRow Account() {
    SealedReader reader(&objects_);
    v1::IncarnationRow found;
    EXPECT_TRUE(
        reader
            .ForEachIncarnation(
                "run", [&](const v1::IncarnationRow& row) { found = row; })
            .ok());
    return found;
  }

  FaultObjectStore objects_;
};

// For every frame at which it can change its collector, and every number of
// frames that both then have.
TEST_F(UniteTest, TwoCollectorsSealWhatOneWould) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step) AddStepInFrames(step, &frames);
  const std::unique_ptr<Store> alone = OpenLeaf("alone");
  Send(alone.get(), frames, 0, frames.size());
  const Seen expected = See(alone.get(), "run");
  const auto infos = alone->ListSteps("run");
  ASSERT_EQ(expected.size(), 3u);
  for (size_t left_at = 1; left_at < frames.size(); ++left_at) {
    // An agent resends a payload from its beginning.
    for (const size_t from : std::set<size_t>{left_at, left_at - left_at % 4}) {
      if (left_at % 4 != 0 && left_at % 4 != 3 && from == left_at) continue;
      SCOPED_TRACE(
          absl::StrCat("left at ", left_at, ", sent again from ", from));
      objects_ = FaultObjectStore();
      const std::string first = absl::StrCat("a", left_at, "_", from),
                        second = absl::StrCat("b", left_at, "_", from);
      const std::unique_ptr<Store> a = OpenLeaf(first), b = OpenLeaf(second);
      Send(a.get(), frames, 0, left_at);
      Send(b.get(), frames, from, frames.size());
      Seal(a.get(), first);
      Seal(b.get(), second);
      SealedReader reader(&objects_);
      EXPECT_EQ(See(&reader, "run"), expected);
      const auto steps = reader.ListSteps("run");
      ASSERT_TRUE(steps.ok()) << steps.status();
      ASSERT_EQ(steps->size(), infos->size());
      for (size_t i = 0; i < steps->size(); ++i) {
        v1::StepInfo united = (*steps)[i], one = (*infos)[i];
        united.clear_updated_unix_ns();
        one.clear_updated_unix_ns();
        EXPECT_EQ(united.SerializeAsString(), one.SerializeAsString())
            << united.ShortDebugString() << "\n"
            << one.ShortDebugString();
      }
      EXPECT_EQ(Account().lost_frames(), 0u);
      EXPECT_EQ(Account().committed_sequence(), frames.size());
    }
  }
}

// The first collector's disk is lost: only its frames are missing.
TEST_F(UniteTest, FramesThatNobodyHasAreCounted) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step) AddStepInFrames(step, &frames);
  const std::unique_ptr<Store> a = OpenLeaf("a"), b = OpenLeaf("b"),
                               c = OpenLeaf("c");
  Send(a.get(), frames, 0, 3);
  Send(c.get(), frames, 8, frames.size());
  Seal(a.get(), "a");
  Seal(c.get(), "c");
  EXPECT_EQ(Account().lost_frames(), 5u);
  ASSERT_EQ(Account().absent_size(), 1);
  EXPECT_EQ(Account().absent(0).first(), 4u);
  EXPECT_EQ(Account().absent(0).last(), 8u);
  // It was not lost, only unreachable.
  Send(b.get(), frames, 3, 8);
  Seal(b.get(), "b");
  EXPECT_EQ(Account().lost_frames(), 0u);
  EXPECT_EQ(Account().absent_size(), 0);
}

v1::IncarnationRow Row(uint64_t committed, uint64_t first = 0,
                       uint64_t last = 0) {
  v1::IncarnationRow row;
  row.set_committed_sequence(committed);
  if (last > 0) {
    row.add_absent()->set_first(first);
    row.mutable_absent(0)->set_last(last);
    row.set_lost_frames(last - first + 1);
  }
  return row;
}

TEST(UniteRowsTest, TheLastCollectorKnowsHowItEnded) {
  v1::IncarnationRow first = Row(9), second = Row(8, 1, 8);
  first.set_dumping_in(5);
  // It connected there, and recorded nothing more.
  EXPECT_EQ(sealed::UniteRows({first, second}).dumping_in(), 0u);
  EXPECT_EQ(sealed::UniteRows({second, first}).committed_sequence(), 9u);
  second.set_dumping_in(6);
  EXPECT_EQ(sealed::UniteRows({first, second}).dumping_in(), 6u);
  second.mutable_undelivered()->set_records(3);
  EXPECT_EQ(sealed::UniteRows({first, second}).undelivered().records(), 3u);
}

TEST(UniteRowsTest, RefusalsAreOneForEachFrame) {
  v1::IncarnationRow first = Row(20), second = Row(40, 1, 15);
  for (uint64_t sequence : {3, 18})
    first.add_refusals()->set_sequence(sequence);
  first.set_refused_frames(4);
  for (uint64_t sequence : {18, 30})
    second.add_refusals()->set_sequence(sequence);
  second.set_refused_frames(2);
  const v1::IncarnationRow all = sealed::UniteRows({first, second});
  EXPECT_EQ(all.refusals_size(), 3);
  EXPECT_EQ(all.refused_frames(), 5u);
  EXPECT_EQ(all.lost_frames(), 0u);
}

// A row from before there were ranges.
TEST(UniteRowsTest, LostFramesWithoutAPlaceStayLost) {
  v1::IncarnationRow first = Row(20), second = Row(40, 1, 15);
  first.set_lost_frames(2);
  EXPECT_EQ(sealed::UniteRows({first, second}).lost_frames(), 2u);
}

}  // namespace
}  // namespace rankprobe
