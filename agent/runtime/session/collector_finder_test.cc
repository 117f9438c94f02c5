// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/collector_finder.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/monotonic_event.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/leaf.grpc.pb.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeRoot final : public v1::RootService::Service {
 public:
  grpc::Status FindCollector(grpc::ServerContext* context,
                             const v1::FindCollectorRequest* request,
                             v1::FoundCollector* response) override {
    absl::MutexLock lock(&mutex_);
    asked_ = *request;
    *response = answer_;
    return status_;
  }
  void Reply(const std::string& leaf, const std::string& address) {
    absl::MutexLock lock(&mutex_);
    answer_.set_leaf(leaf);
    answer_.set_address(address);
    status_ = grpc::Status::OK;
  }
  void Reply(const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    status_ = status;
  }
  v1::FindCollectorRequest asked() {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }

 private:
  absl::Mutex mutex_;
  v1::FindCollectorRequest asked_ ABSL_GUARDED_BY(mutex_);
  v1::FoundCollector answer_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

class CollectorFinderTest : public ::testing::Test {
 protected:
  CollectorFinderTest() { identity_.set_run("run"); }
  void Start(grpc::Service* service,
             absl::Duration patience = CollectorFinder::kPatience) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    if (service != nullptr) builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    finder_ = std::make_unique<CollectorFinder>(
        MakeCollectorChannel(
            grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_),
                                grpc::InsecureChannelCredentials())),
        security_, "stage0", [this] { woken_.Set(); },
        [this](absl::Duration timeout) {
          woken_.WaitFor(timeout);
          return !stopping_;
        },
        patience);
  }

  v1::Identity identity_;
  const ChannelSecurity security_;
  FakeRoot root_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  MonotonicEvent woken_;
  bool stopping_ = false;
  std::unique_ptr<CollectorFinder> finder_;
};

TEST_F(CollectorFinderTest, AnOrdinaryCollectorIsMeantItself) {
  v1::RootService::Service nothing;
  Start(&nothing);
  EXPECT_EQ(*finder_->Find(identity_), "");
  EXPECT_FALSE(finder_->is_root());
  // It is not asked again while it answers.
  server_->Shutdown();
  EXPECT_EQ(*finder_->Find(identity_), "");
}

// A collector from before there were roots: it requires an operator's token.
TEST_F(CollectorFinderTest, OneThatRefusesTheQuestionIsMeantItself) {
  Start(&root_);
  for (const grpc::StatusCode code :
       {grpc::StatusCode::PERMISSION_DENIED, grpc::StatusCode::UNAUTHENTICATED,
        grpc::StatusCode::UNAVAILABLE}) {
    root_.Reply(grpc::Status(code, "no"));
    EXPECT_EQ(*finder_->Find(identity_), "");
    EXPECT_FALSE(finder_->is_root());
  }
}

TEST_F(CollectorFinderTest, ARootNamesALeaf) {
  Start(&root_);
  root_.Reply("a", "10.0.0.1:7411");
  EXPECT_EQ(*finder_->Find(identity_), "10.0.0.1:7411");
  EXPECT_TRUE(finder_->is_root());
  EXPECT_EQ(root_.asked().identity().run(), "run");
  EXPECT_EQ(root_.asked().replica(), "stage0");
  EXPECT_THAT(root_.asked().failed(), IsEmpty());
  root_.Reply("a", "anywhere");
  EXPECT_THAT(std::string(finder_->Find(identity_).status().message()),
              HasSubstr("not a HOST:PORT"));
  root_.Reply(grpc::Status(grpc::StatusCode::ABORTED, "no leaf is connected"));
  EXPECT_TRUE(absl::IsUnavailable(finder_->Find(identity_).status()));
}

TEST_F(CollectorFinderTest, ARootThatHasGoneLeavesTheLeaf) {
  Start(&root_);
  root_.Reply("a", "10.0.0.1:7411");
  ASSERT_TRUE(finder_->Find(identity_).ok());
  server_->Shutdown();
  EXPECT_EQ(*finder_->Find(identity_), "10.0.0.1:7411");
  // If that one fails as well, there is none left.
  finder_->NoteNotReached();
  EXPECT_TRUE(absl::IsUnavailable(finder_->Find(identity_).status()));
}

TEST_F(CollectorFinderTest, ALeafThatIsNotReachedMayOnlyBeStartedAgain) {
  Start(&root_, absl::Hours(1));
  root_.Reply("a", "10.0.0.1:7411");
  ASSERT_TRUE(finder_->Find(identity_).ok());
  finder_->NoteNotReached();
  ASSERT_TRUE(finder_->Find(identity_).ok());
  EXPECT_THAT(root_.asked().failed(), IsEmpty());
}

TEST_F(CollectorFinderTest, ALeafThatIsNotReachedForLongIsNamed) {
  Start(&root_, absl::ZeroDuration());
  root_.Reply("a", "10.0.0.1:7411");
  ASSERT_TRUE(finder_->Find(identity_).ok());
  finder_->NoteNotReached();
  root_.Reply("b", "10.0.0.2:7411");
  ASSERT_TRUE(finder_->Find(identity_).ok());
  EXPECT_THAT(root_.asked().failed(), ElementsAre("a"));
  finder_->NoteNotReached();
  // There is no other leaf: all are tried again.
  root_.Reply(grpc::Status(grpc::StatusCode::ABORTED, "none was reached"));
  EXPECT_FALSE(finder_->Find(identity_).ok());
  EXPECT_THAT(root_.asked().failed(), ElementsAre("a", "b"));
  finder_->NoteReached();
  root_.Reply("a", "10.0.0.1:7411");
  ASSERT_TRUE(finder_->Find(identity_).ok());
  EXPECT_THAT(root_.asked().failed(), IsEmpty());
}

TEST_F(CollectorFinderTest, StopsWhenItIsToldTo) {
  Start(&root_);
  stopping_ = true;
  root_.Reply("a", "10.0.0.1:7411");
  const auto found = finder_->Find(identity_);
  EXPECT_TRUE(found.ok() || absl::IsCancelled(found.status()));
}

}  // namespace
}  // namespace rankprobe
