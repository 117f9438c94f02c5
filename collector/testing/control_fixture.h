// SPDX-License-Identifier: Apache-2.0
// A ControlPlane over a store and events in a temporary directory, without a
// server: ranks are in the test's memory.
//
// Not thread-safe: a test's thread.
#ifndef RANKPROBE_COLLECTOR_TESTING_CONTROL_FIXTURE_H_
#define RANKPROBE_COLLECTOR_TESTING_CONTROL_FIXTURE_H_

#include <memory>
#include <utility>

#include "collector/control/control_plane.h"
#include "collector/testing/frames.h"

namespace rankprobe::testing {

class ControlFixture : public TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    auto events = EventLog::Open({}, nullptr, &clock_);
    ASSERT_TRUE(events.ok()) << events.status();
    events_ = *std::move(events);
    Restart();
  }
  void TearDown() override {
    control_.reset();
    store_.reset();
    TempDirTest::TearDown();
  }
  // Restarts the control plane as after the end of the process; the events are
  // kept.
  void Restart() {
    control_.reset();
    store_.reset();
    store_ = OpenStore();
    ControlPlane::Options options;
    options.events = events_.get();
    control_ = std::make_unique<ControlPlane>(options, store_.get(),
                                              store_.get(), &clock_);
  }

  std::unique_ptr<EventLog> events_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> control_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_TESTING_CONTROL_FIXTURE_H_
