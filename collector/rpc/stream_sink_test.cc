// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/stream_sink.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rankprobe {
namespace {

class StreamSinkTest : public ::testing::Test {
 protected:
  StreamSink Sink(bool takes_files) {
    v1::ExportRequest request;
    request.set_takes_files(takes_files);
    return StreamSink(request, [this](v1::ExportEvent event) {
      events_.push_back(std::move(event));
      return absl::OkStatus();
    });
  }
  static void File(const std::string& path, const std::string& data,
                   StreamSink* sink) {
    ASSERT_TRUE(sink->BeginFile(path, data.size()).ok());
    ASSERT_TRUE(sink->Write(data.substr(0, 2)).ok());
    ASSERT_TRUE(sink->Write(data.substr(2)).ok());
    ASSERT_TRUE(sink->EndFile().ok());
  }
  std::vector<v1::ExportEvent> events_;
};

TEST_F(StreamSinkTest, SmallFilesShareAMessage) {
  StreamSink sink = Sink(true);
  File("a", "1234", &sink);
  File("b", "56789", &sink);
  EXPECT_TRUE(events_.empty());
  ASSERT_TRUE(sink.Flush().ok());
  ASSERT_EQ(events_.size(), 1u);
  ASSERT_EQ(events_[0].files().files_size(), 2);
  EXPECT_EQ(events_[0].files().files(0).path(), "a");
  EXPECT_EQ(events_[0].files().files(0).data(), "1234");
  EXPECT_EQ(events_[0].files().files(1).data(), "56789");
  ASSERT_TRUE(sink.Flush().ok());
  EXPECT_EQ(events_.size(), 1u) << "nothing is sent twice";
}

TEST_F(StreamSinkTest, MessagesStayBounded) {
  StreamSink sink = Sink(true);
  const std::string data(60000, 'x');
  for (int i = 0; i < 40; ++i) File(std::string(1, 'a'), data, &sink);
  ASSERT_TRUE(sink.Flush().ok());
  int files = 0;
  for (const v1::ExportEvent& event : events_) {
    EXPECT_LE(event.ByteSizeLong(), (256u << 10) + 1024);
    files += event.files().files_size();
  }
  EXPECT_EQ(files, 40);
  EXPECT_EQ(events_.size(), 10u);
}

TEST_F(StreamSinkTest, WhatRefersToAFileComesBehindIt) {
  StreamSink sink = Sink(true);
  File("a", "1234", &sink);
  ASSERT_TRUE(sink.LinkFile("b", "a").ok());
  File("large", std::string(70000, 'x'), &sink);
  ASSERT_TRUE(sink.Flush().ok());
  ASSERT_EQ(events_.size(), 5u);
  EXPECT_TRUE(events_[0].has_files());
  EXPECT_TRUE(events_[1].has_file_link());
  EXPECT_EQ(events_[2].file_begin().length_bytes(), 70000u);
  EXPECT_EQ(events_[3].file_data().data().size() +
                events_[4].file_data().data().size(),
            70000u);
}

TEST_F(StreamSinkTest, AnAbortedSmallFileIsNeverSent) {
  StreamSink sink = Sink(true);
  File("a", "1234", &sink);
  ASSERT_TRUE(sink.BeginFile("bad", 10).ok());
  ASSERT_TRUE(sink.Write("half").ok());
  ASSERT_TRUE(sink.AbortFile().ok());
  File("c", "5678", &sink);
  ASSERT_TRUE(sink.Flush().ok());
  ASSERT_EQ(events_.size(), 1u);
  ASSERT_EQ(events_[0].files().files_size(), 2);
  EXPECT_EQ(events_[0].files().files(1).path(), "c");
}

TEST_F(StreamSinkTest, ACallerThatDoesNotAskGetsFilesInPieces) {
  StreamSink sink = Sink(false);
  File("a", "1234", &sink);
  ASSERT_TRUE(sink.BeginFile("bad", 10).ok());
  ASSERT_TRUE(sink.AbortFile().ok());
  ASSERT_TRUE(sink.Flush().ok());
  ASSERT_EQ(events_.size(), 5u);
  EXPECT_EQ(events_[0].file_begin().path(), "a");
  EXPECT_EQ(events_[2].file_data().data(), "34");
  EXPECT_TRUE(events_[4].file_abort());
}

}  // namespace
}  // namespace rankprobe
