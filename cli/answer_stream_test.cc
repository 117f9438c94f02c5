// SPDX-License-Identifier: Apache-2.0
// Answers in many messages, some of which were damaged in transit.
#include "cli/client/answer_stream.h"

#include <memory>
#include <string>
#include <vector>

#include "cli/output/export_receiver.h"
#include "common/io/file_system.h"
#include "common/rpc/testing/raw_server.h"
#include "common/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::rankprobe::testing::Checked;
using ::rankprobe::testing::Flipped;
using ::rankprobe::testing::RawServer;
using ::testing::ElementsAre;

using Ledger = AnswerStream<v1::StepLedger>;

std::string Step(int64_t step) {
  v1::StepLedger ledger;
  ledger.set_step(step);
  return Checked(ledger);
}

std::string Damaged(const std::string& message) { return Flipped(message, 9); }

Client ClientOf(const RawServer& server) {
  Globals globals;
  globals.collector = server.address;
  return Client(globals);
}

struct Read {
  std::vector<int64_t> steps;
  absl::Status status;
};

Read ReadAll(const RawServer& server,
             Ledger::Repeats repeats = Ledger::Repeats::kFromWhereItEnded) {
  const Client client = ClientOf(server);
  Ledger reader(client, /*extra_seconds=*/0, &ArchiveStub::GetLedger,
                v1::GetLedgerRequest(), repeats);
  Read read;
  for (v1::StepLedger step; reader.Read(&step);)
    read.steps.push_back(step.step());
  read.status = reader.Finish();
  return read;
}

TEST(AnswerStreamTest, GoesOnWhereItEnded) {
  RawServer server;
  server.answers = {{Step(1), Step(2), Damaged(Step(3)), Step(4)},
                    {Step(1), Damaged(Step(2))},
                    {Step(1), Step(2), Step(3), Step(4)}};
  const Read read = ReadAll(server);
  EXPECT_EQ(read.status, absl::OkStatus());
  EXPECT_THAT(read.steps, ElementsAre(1, 2, 3, 4));
}

TEST(AnswerStreamTest, EndsAfterTheMostCalls) {
  RawServer server;
  server.answers.resize(Ledger::kMostCalls, {Step(1), Damaged(Step(2))});
  const Read read = ReadAll(server);
  EXPECT_TRUE(absl::IsDataLoss(read.status)) << read.status;
  EXPECT_THAT(read.steps, ElementsAre(1));
}

// gRPC drops a message whose length was damaged and all later ones.
TEST(AnswerStreamTest, AnAnswerThatEndsEarlyIsAskedForAgain) {
  RawServer server;
  server.answers = {{Step(1)}, {}, {Step(1), Step(2)}};
  server.announced = {2, 2, 2};
  const Read read = ReadAll(server);
  EXPECT_EQ(read.status, absl::OkStatus());
  EXPECT_THAT(read.steps, ElementsAre(1, 2));
}

TEST(AnswerStreamTest, AnotherAnswerIsNoContinuation) {
  const std::vector<std::vector<std::string>> others = {
      {Step(1), Step(5), Step(3)}, {Step(1)}, {}};
  for (const auto& other : others) {
    RawServer server;
    server.answers = {{Step(1), Step(2), Damaged(Step(3))}, other};
    const Read read = ReadAll(server);
    EXPECT_TRUE(absl::IsDataLoss(read.status)) << read.status;
    EXPECT_THAT(read.steps, ElementsAre(1, 2));
  }
}

TEST(AnswerStreamTest, AnAnswerThatChangesIsRepeatedOnlyBeforeItsFirstMessage) {
  RawServer server;
  server.answers = {{Damaged(Step(1))}, {Step(2), Damaged(Step(3))}};
  const Read read = ReadAll(server, Ledger::Repeats::kFromItsBegin);
  EXPECT_TRUE(absl::IsDataLoss(read.status)) << read.status;
  EXPECT_THAT(read.steps, ElementsAre(2));
}

std::string Event(void (*make)(v1::ExportEvent*)) {
  v1::ExportEvent event;
  make(&event);
  return Checked(event);
}

TEST(ReceiveExportTest, ADamagedOneAsksForWhatIsMissing) {
  const std::string directory = Event(+[](v1::ExportEvent* event) {
    event->set_directory("step0/rank0/dump_tensor_data");
  });
  const std::string tensor = Event(+[](v1::ExportEvent* event) {
    v1::ExportFile* const file = event->mutable_files()->add_files();
    file->set_path("step0/rank0/dump_tensor_data/a.pt");
    file->set_data("tensor");
  });
  const std::string kept = Event(+[](v1::ExportEvent* event) {
    event->set_file_kept("step0/rank0/dump_tensor_data/a.pt");
  });
  const std::string rest = Event(+[](v1::ExportEvent* event) {
    v1::ExportFile* const file = event->mutable_files()->add_files();
    file->set_path("step0/rank0/dump.json");
    file->set_data("{}");
  });
  const std::string done = Event(
      +[](v1::ExportEvent* event) { event->mutable_done()->set_files(2); });
  RawServer server;
  server.answers = {{directory, tensor, Damaged(rest)},
                    {directory, kept, rest, done}};
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  const std::string root = scratch.path() + "/dump";
  auto files = ExportFiles::Open(file_system.get(), root,
                                 StagedTree::Leftovers::kDelete);
  ASSERT_TRUE(files.ok()) << files.status();
  const ReceivedExport received = (*files)->Receive(
      ClientOf(server), v1::ExportRequest(),
      [](const v1::ExportEvent&) { return absl::OkStatus(); });
  ASSERT_EQ(received.status(), absl::OkStatus());
  EXPECT_EQ(received.done->files(), 2u);
  ASSERT_TRUE((*files)->Finish("x").ok());
  EXPECT_EQ(*file_system->FileSize(root + "/step0/rank0/dump_tensor_data/a.pt"),
            6u);
  EXPECT_EQ(*file_system->FileSize(root + "/step0/rank0/dump.json"), 2u);
}

}  // namespace
}  // namespace rankprobe
