// SPDX-License-Identifier: Apache-2.0
#include "collector/control/relay_queue.h"

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

v1::RelayedEvent Hello(const std::string& session, int64_t step) {
  v1::RelayedEvent event;
  event.set_session(session);
  event.mutable_event()->mutable_hello()->set_step(step);
  event.mutable_event()->mutable_hello()->set_incarnation_secret("secret");
  event.mutable_event()->mutable_hello()->set_config_json("{}");
  return event;
}
v1::RelayedEvent Step(const std::string& session, int64_t step) {
  v1::RelayedEvent event;
  event.set_session(session);
  event.mutable_event()->mutable_progress()->set_step(step);
  return event;
}
v1::RelayedEvent Gone(const std::string& session) {
  v1::RelayedEvent event;
  event.set_session(session);
  event.set_gone("it broke");
  return event;
}

TEST(RelayQueueTest, KeepsTheOrderAndNoSecrets) {
  RelayQueue queue;
  queue.Push(Hello("a", 1));
  queue.Push(Step("a", 2));
  queue.Push(Step("nobody", 2));
  queue.Push(Gone("nobody"));
  queue.Push(Gone("a"));
  v1::LeafReport report;
  ASSERT_TRUE(queue.Take(1 << 20, &report));
  ASSERT_EQ(report.events_size(), 3);
  EXPECT_TRUE(report.events(0).event().has_hello());
  EXPECT_EQ(report.events(0).event().hello().incarnation_secret(), "");
  EXPECT_EQ(report.events(1).event().progress().step(), 2);
  EXPECT_EQ(report.events(2).gone(), "it broke");
  v1::LeafReport next;
  ASSERT_TRUE(queue.Take(1 << 20, &next));
  EXPECT_EQ(next.events_size(), 0);
}

TEST(RelayQueueTest, BeginsAnewWithWhereRanksAreNow) {
  RelayQueue queue;
  queue.Push(Hello("a", 1));
  queue.Push(Hello("b", 1));
  queue.Push(Step("a", 7));
  v1::RelayedEvent applied = Step("a", 0);
  applied.mutable_event()->mutable_applied()->set_epoch(3);
  queue.Push(applied);
  v1::RelayedEvent ranked = Step("a", 0);
  ranked.mutable_event()->mutable_rank_known()->set_rank(5);
  queue.Push(ranked);
  queue.Push(Gone("b"));
  queue.BeginAnew();
  v1::LeafReport report;
  ASSERT_TRUE(queue.Take(1 << 20, &report));
  ASSERT_EQ(report.events_size(), 1);
  const v1::Hello& hello = report.events(0).event().hello();
  EXPECT_EQ(hello.step(), 7);
  EXPECT_EQ(hello.plan_epoch(), 3u);
  EXPECT_EQ(hello.identity().rank(), 5);
}

TEST(RelayQueueTest, GivesInPieces) {
  RelayQueue queue;
  queue.Push(Hello("a", 1));
  for (int64_t step = 0; step < 100; ++step) queue.Push(Step("a", step));
  int events = 0, reports = 0;
  for (;; ++reports) {
    v1::LeafReport report;
    ASSERT_TRUE(queue.Take(100, &report));
    if (report.events().empty()) break;
    EXPECT_LE(report.ByteSizeLong(), 200u);
    events += report.events_size();
  }
  EXPECT_EQ(events, 101);
  EXPECT_GT(reports, 10);
}

TEST(RelayQueueTest, ARootThatDoesNotKeepUpIsToldAnew) {
  RelayQueue queue;
  queue.Push(Hello("a", 1));
  v1::RelayedEvent large = Step("a", 0);
  large.mutable_event()->mutable_error()->set_message(
      std::string(1 << 20, 'x'));
  for (int i = 0; i < 70; ++i) queue.Push(large);
  v1::LeafReport report;
  EXPECT_FALSE(queue.Take(1 << 20, &report));
  queue.BeginAnew();
  ASSERT_TRUE(queue.Take(1 << 20, &report));
  EXPECT_EQ(report.events_size(), 1);
}

// Configs of hostile ranks cannot fill the memory.
TEST(RelayQueueTest, HellosAreBounded) {
  RelayQueue queue;
  v1::RelayedEvent hello;
  for (int i = 0; i < 100; ++i) {
    hello = Hello(std::to_string(i), 1);
    hello.mutable_event()->mutable_hello()->set_config_json(
        std::string(1 << 20, 'c'));
    queue.Push(hello);
  }
  queue.BeginAnew();
  int events = 0, with_config = 0;
  for (v1::LeafReport report;
       queue.Take(1, &report) && report.events_size() > 0; report.Clear()) {
    ++events;
    with_config +=
        report.events(0).event().hello().config_json().empty() ? 0 : 1;
  }
  EXPECT_EQ(events, 100);
  EXPECT_LE(with_config, 65);
}

}  // namespace
}  // namespace rankprobe
