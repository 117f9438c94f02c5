// SPDX-License-Identifier: Apache-2.0
// A collector inside the test process, over a file system that can fail.
#ifndef RANKPROBE_TESTS_CRASH_SERVER_FIXTURE_H_
#define RANKPROBE_TESTS_CRASH_SERVER_FIXTURE_H_

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/runtime/session/session.h"
#include "collector/server/server.h"
#include "collector/store/store.h"
#include "common/base/logger.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe::crash {

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.listen = "127.0.0.1:0";
    config_.data_dir = "/d";
    config_.credit_bytes = 1 << 20;
    config_.pending_bytes = 16 << 20;
    config_.sync_interval_ms = 20;
    config_.drain_seconds = 1;
    StoreOptions options;
    options.data_dir = "/d";
    options.min_free_bytes = 0;
    options.segment_bytes = 4 << 20;
    auto store = Store::Open(options, &fs_, &clock_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = store->get();
    auto server = Server::Start(config_, ServedArchive(*std::move(store)), &fs_,
                                &clock_, &logger_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void TearDown() override { server_.reset(); }

  std::string address() const {
    return absl::StrCat("127.0.0.1:", server_->port());
  }

  std::unique_ptr<Session> Connect(int64_t rank, uint64_t budget,
                                   OverflowPolicy policy) {
    SessionOptions options;
    options.collector = address();
    options.identity.set_run("run");
    options.identity.set_rank(rank);
    options.identity.set_job("job");
    options.queue_budget_bytes = budget;
    options.policy = policy;
    options.block_deadline = block_deadline_;
    options.silence_deadline = silence_deadline_;
    options.drain_deadline = absl::Seconds(5);
    auto session = Session::Create(options, &clock_);
    EXPECT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE((*session)->WaitConnected(absl::Seconds(20)).ok());
    return *std::move(session);
  }

  testing::FaultFileSystem fs_;
  const SystemClock clock_{};
  const Logger logger_{2, Logger::Severity::kError, &clock_};
  ServerConfig config_;
  absl::Duration block_deadline_ = absl::Seconds(10);
  absl::Duration silence_deadline_ = absl::Seconds(10);
  std::unique_ptr<Server> server_;
  // Owned by the server.
  Store* store_ = nullptr;
};

}  // namespace rankprobe::crash

#endif  // RANKPROBE_TESTS_CRASH_SERVER_FIXTURE_H_
