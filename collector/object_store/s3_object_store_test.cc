// SPDX-License-Identifier: Apache-2.0
// The S3 client over real libcurl and a server on loopback that fails as stores
// and networks do. Correct answers are tested with Ceph
// (object_store_conformance_test.cc).
#include "collector/object_store/s3_object_store.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "collector/object_store/curl_transport.h"
#include "collector/object_store/testing/loopback_http.h"
#include "collector/object_store/testing/put_modes.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::LoopbackHttp;
using Answer = LoopbackHttp::Answer;

using testing::kIfAbsent;
using testing::kReplace;

class S3Client : public ::testing::Test {
 protected:
  // Answers by the number of the request, from 0.
  void Serve(std::function<Answer(int, const std::string&, const std::string&)>
                 handler) {
    server_ = std::make_unique<LoopbackHttp>(
        [this, handler](const std::string& head, const std::string& body) {
          int number = 0;
          {
            absl::MutexLock lock(&mutex_);
            number = static_cast<int>(heads_.size());
            heads_.push_back(head);
          }
          return handler(number, head, body);
        });
    S3Options options;
    options.location.bucket = "bucket";
    options.location.prefix = "p";
    options.location.region = "r";
    options.location.endpoint = server_->endpoint();
    options.location.path_style = true;
    options.request_timeout = request_timeout_;
    options.part_bytes = 1000;
    options.pacing.random = [] { return 0.5; };
    options.credentials = [this]() -> absl::StatusOr<SigV4Credentials> {
      ++loads_;
      return SigV4Credentials{absl::StrCat("key", loads_.load()), "secret",
                              "token"};
    };
    options.sleep = [this](absl::Duration wait) {
      waits_.push_back(wait);
      clock_.Advance(wait);
      return !ending_;
    };
    auto transport = NewCurlTransport(CurlOptions());
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    store_ = std::make_unique<S3ObjectStore>(std::move(options),
                                             transport_.get(), &clock_);
  }
  int requests() {
    absl::MutexLock lock(&mutex_);
    return static_cast<int>(heads_.size());
  }
  std::string head(int i) {
    absl::MutexLock lock(&mutex_);
    return heads_[static_cast<size_t>(i)];
  }

  ManualClock clock_;
  absl::Duration request_timeout_ = absl::Seconds(20);
  bool ending_ = false;
  std::atomic<int> loads_{0};
  std::vector<absl::Duration> waits_;
  absl::Mutex mutex_;
  std::vector<std::string> heads_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<LoopbackHttp> server_;
  std::unique_ptr<HttpTransport> transport_;
  std::unique_ptr<S3ObjectStore> store_;
};

TEST_F(S3Client, SendsWhatItSigns) {
  std::string put;
  Serve([&](int, const std::string&, const std::string& body) {
    put = body;
    return Answer{LoopbackHttp::Http(200, "")};
  });
  ASSERT_TRUE(store_->Put("a/b", "bytes", kIfAbsent).ok());
  EXPECT_EQ(put, "bytes");
  EXPECT_TRUE(absl::StartsWith(head(0), "PUT /bucket/p/a/b HTTP/1.1\r\n"))
      << head(0);
  EXPECT_TRUE(absl::StrContains(head(0), "\r\nIf-None-Match: *\r\n"));
  EXPECT_TRUE(absl::StrContains(head(0), "\r\nx-amz-security-token: token"));
  EXPECT_TRUE(absl::StrContains(
      head(0),
      absl::StrCat("\r\nx-amz-content-sha256: ", HexSha256("bytes"), "\r\n")));
  EXPECT_TRUE(absl::StrContains(
      head(0),
      "SignedHeaders=host;if-none-match;x-amz-content-sha256;x-amz-date;"
      "x-amz-security-token, "));
  EXPECT_FALSE(absl::StrContains(head(0), "secret"));
  EXPECT_FALSE(absl::StrContains(head(0), "Expect"));
}

TEST_F(S3Client, TriesAgainWhatMayPass) {
  Serve([](int number, const std::string&, const std::string&) -> Answer {
    switch (number) {
      case 0:
        return {LoopbackHttp::Error(503, "SlowDown")};
      case 1:
        return {LoopbackHttp::Error(500, "InternalError")};
      case 2:
        return {LoopbackHttp::Error(409, "ConditionalRequestConflict")};
      case 3:
        return {};  // Cut before an answer.
      case 4:
        return {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"};
      default:
        return {LoopbackHttp::Http(200, "")};
    }
  });
  EXPECT_EQ(store_->Put("k", "x", kReplace), absl::OkStatus());
  EXPECT_EQ(requests(), 6);
  EXPECT_EQ(waits_, (std::vector<absl::Duration>{
                        absl::Milliseconds(50), absl::Milliseconds(100),
                        absl::Milliseconds(200), absl::Milliseconds(400),
                        absl::Milliseconds(800)}));
  // After the SlowDown and the answers since.
  EXPECT_LT(store_->at_once(), 16);
}

TEST_F(S3Client, GivesUpAtItsDeadline) {
  Serve([](int, const std::string&, const std::string&) {
    return Answer{LoopbackHttp::Error(503, "SlowDown")};
  });
  const absl::Status status = store_->Put("k", "x", kReplace);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "503 SlowDown: because"));
  EXPECT_TRUE(absl::StrContains(status.message(), "attempts)")) << status;
  EXPECT_LE(clock_.MonotonicNanos(), 60'000'000'000);
  EXPECT_GE(clock_.MonotonicNanos(), 50'000'000'000);
  EXPECT_EQ(store_->at_once(), 1);
}

TEST_F(S3Client, EndsWhenItIsToldTo) {
  ending_ = true;
  Serve([](int, const std::string&, const std::string&) {
    return Answer{LoopbackHttp::Error(503, "SlowDown")};
  });
  EXPECT_TRUE(absl::IsUnavailable(store_->Put("k", "x", kReplace)));
  EXPECT_EQ(requests(), 1);
}

TEST_F(S3Client, DoesNotWaitForAStoreThatHangs) {
  request_timeout_ = absl::Milliseconds(200);
  Serve([](int number, const std::string&, const std::string&) -> Answer {
    if (number < 2) return {number == 0 ? "" : "HTTP/1.1 200 OK\r\n", true};
    return {LoopbackHttp::Http(200, "")};
  });
  EXPECT_EQ(store_->Put("k", "x", kReplace), absl::OkStatus());
  // More if a busy machine takes that long for an answer as well.
  EXPECT_GE(requests(), 3);
}

TEST_F(S3Client, TellsWhoseAnswerWasLostThatItIsThere) {
  std::atomic<bool> there{false};
  Serve([&](int number, const std::string&, const std::string&) -> Answer {
    if (there) return {LoopbackHttp::Error(412, "PreconditionFailed")};
    there = true;
    return number == 0 ? Answer{} : Answer{LoopbackHttp::Http(200, "")};
  });
  EXPECT_TRUE(absl::IsAlreadyExists(store_->Put("k", "x", kIfAbsent)));
  EXPECT_EQ(requests(), 2);
}

TEST_F(S3Client, DoesNotTryAgainWhatWillNotPass) {
  const std::vector<std::pair<std::string, absl::StatusCode>> cases = {
      {LoopbackHttp::Error(403, "AccessDenied"),
       absl::StatusCode::kPermissionDenied},
      {LoopbackHttp::Error(404, "NoSuchKey"), absl::StatusCode::kNotFound},
      {LoopbackHttp::Error(404, "NoSuchBucket"),
       absl::StatusCode::kFailedPrecondition},
      {LoopbackHttp::Http(301, "", "x-amz-bucket-region: eu-1\r\n"),
       absl::StatusCode::kFailedPrecondition},
      {LoopbackHttp::Error(400, "InvalidArgument"),
       absl::StatusCode::kInternal},
      {LoopbackHttp::Error(501, "NotImplemented"),
       absl::StatusCode::kUnimplemented},
      {LoopbackHttp::Http(404, "<html>\x1b[2J"), absl::StatusCode::kNotFound}};
  Serve([&](int number, const std::string&, const std::string&) {
    return Answer{cases[static_cast<size_t>(number)].first};
  });
  for (const auto& [answer, code] : cases) {
    const absl::Status status = store_->Put("k", "x", kReplace);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(status.message().find('\x1b'), std::string::npos);
  }
  EXPECT_EQ(requests(), static_cast<int>(cases.size()));
}

TEST_F(S3Client, TakesNewCredentialsWhenTheyHaveExpired) {
  Serve([](int, const std::string& head, const std::string&) {
    return Answer{absl::StrContains(head, "Credential=key1/")
                      ? LoopbackHttp::Error(403, "ExpiredToken")
                      : LoopbackHttp::Http(200, "")};
  });
  EXPECT_EQ(store_->Put("k", "x", kReplace), absl::OkStatus());
  EXPECT_EQ(loads_, 2);
  // Once, not forever.
  Serve([](int, const std::string&, const std::string&) {
    return Answer{LoopbackHttp::Error(403, "ExpiredToken")};
  });
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Put("k", "x", kReplace)));
}

TEST_F(S3Client, BelievesNoRangeThatItDidNotAskFor) {
  const std::vector<std::string> answers = {
      LoopbackHttp::Http(200, "whole object"),
      LoopbackHttp::Http(206, "abc", "Content-Range: bytes 1-3/10\r\n"),
      LoopbackHttp::Http(206, "abc", "Content-Range: bytes 0-2\r\n"),
      LoopbackHttp::Http(206, "abc", "Content-Range: bytes 2-0/10\r\n"),
      LoopbackHttp::Http(206, "abc", "Content-Range: bytes 0-9/10\r\n"),
      LoopbackHttp::Http(206, "abc", "Content-Range: -/\r\n"),
      LoopbackHttp::Http(206, "abc")};
  Serve([&](int number, const std::string&, const std::string&) {
    return Answer{answers[static_cast<size_t>(number)]};
  });
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(store_->Get("k", 0, 3).status().code(),
              absl::StatusCode::kInternal)
        << i;
  }
}

TEST_F(S3Client, TakesNoMoreThanItAskedFor) {
  Serve([](int, const std::string&, const std::string&) {
    return Answer{LoopbackHttp::Http(206, std::string(1 << 20, 'x'),
                                     "Content-Range: bytes 0-2/10\r\n")};
  });
  EXPECT_TRUE(absl::IsResourceExhausted(store_->Get("k", 0, 3).status()));
  EXPECT_EQ(requests(), 1);
}

TEST_F(S3Client, BelievesNoListThatItDidNotAskFor) {
  const auto list = [](const std::string& keys, bool more) {
    std::string xml = absl::StrCat("<ListBucketResult><IsTruncated>",
                                   more ? "true" : "false", "</IsTruncated>");
    for (const absl::string_view key :
         absl::StrSplit(keys, ' ', absl::SkipEmpty()))
      absl::StrAppend(&xml, "<Contents><Key>", key,
                      "</Key><Size>1</Size></Contents>");
    return LoopbackHttp::Http(200, xml + "</ListBucketResult>");
  };
  const std::vector<std::string> answers = {
      list("p/a/1 p/a/2", false), list("other/a/1", false),
      list("p/b/1", false),       list("p/a/2 p/a/1", false),
      list("p/a/0", false),       list("", true)};
  Serve([&](int number, const std::string&, const std::string&) {
    return Answer{answers[static_cast<size_t>(number)]};
  });
  const auto good = store_->List("a/", "a/0", 10);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->objects[1].key, "a/2");
  EXPECT_TRUE(absl::StrContains(
      head(0),
      "?list-type=2&max-keys=10&prefix=p%2Fa%2F&start-after=p%2Fa%2F0"))
      << head(0);
  for (int i = 1; i < 5; ++i)
    EXPECT_FALSE(store_->List("a/", "a/0", 10).ok()) << i;
  EXPECT_FALSE(store_->List("a/", "a/0", 10)->more);
}

// Records the timeout of each request, and refuses it.
class TimedTransport : public HttpTransport {
 public:
  absl::StatusOr<HttpResponse> Do(const HttpCall& request) override {
    timeouts.push_back(request.timeout);
    return absl::UnavailableError("no");
  }
  std::vector<absl::Duration> timeouts;
};

// A slow store does not count as unreachable.
TEST(S3Timeouts, ACallThatMovesMuchHasASecondMoreForEachMiB) {
  ManualClock clock;
  TimedTransport transport;
  S3Options options;
  options.location.bucket = "bucket";
  options.location.endpoint = "http://127.0.0.1:1";
  options.credentials = [] { return SigV4Credentials{"key", "secret", ""}; };
  options.pacing.random = [] { return 0.0; };
  // Once the time of the complete call is over, there is no further attempt.
  absl::Duration waited;
  options.sleep = [&](absl::Duration) {
    clock.Advance(absl::Seconds(1));
    waited += absl::Seconds(1);
    return true;
  };
  S3ObjectStore store(std::move(options), &transport, &clock);
  const std::string large(5 << 20, 'x');
  for (const int64_t mib : {0, 5}) {
    transport.timeouts.clear();
    waited = absl::ZeroDuration();
    EXPECT_FALSE(
        store
            .Put("k", large.substr(0, static_cast<size_t>(mib) << 20), kReplace)
            .ok());
    EXPECT_EQ(transport.timeouts.front(), absl::Seconds(20 + mib));
    EXPECT_EQ(waited, absl::Seconds(60 + mib)) << mib;
    // The last attempt does not exceed it either.
    EXPECT_LE(transport.timeouts.back(), absl::Seconds(1));
  }
}

class S3Parts : public S3Client {
 protected:
  void WriteFile(size_t bytes) {
    auto file = files_.OpenForWrite("/f", FileSystem::OpenMode::kTruncate);
    ASSERT_TRUE(file.ok() && (*file)->Append(std::string(bytes, 'x')).ok());
  }
  testing::FaultFileSystem files_;
};

constexpr char kBegun[] =
    "<InitiateMultipartUploadResult><UploadId>id</UploadId>"
    "</InitiateMultipartUploadResult>";

TEST_F(S3Parts, TakesBackAnUploadThatFails) {
  WriteFile(2500);
  Serve([](int, const std::string& head, const std::string&) {
    if (absl::StartsWith(head, "POST"))
      return Answer{LoopbackHttp::Http(200, kBegun)};
    if (absl::StrContains(head, "partNumber=2"))
      return Answer{LoopbackHttp::Error(403, "AccessDenied")};
    return Answer{LoopbackHttp::Http(200, "", "ETag: \"e\"\r\n")};
  });
  EXPECT_TRUE(absl::IsPermissionDenied(store_->PutFile("k", &files_, "/f")));
  EXPECT_TRUE(
      absl::StartsWith(head(requests() - 1), "DELETE /bucket/p/k?uploadId=id "))
      << head(requests() - 1);
}

// "200 OK" with an error in the body.
TEST_F(S3Parts, DoesNotBelieveTheStatusOfACompletion) {
  WriteFile(1500);
  std::atomic<int> completions{0};
  Serve([&](int, const std::string& head, const std::string&) {
    if (absl::StrContains(head, "?uploads="))
      return Answer{LoopbackHttp::Http(200, kBegun)};
    if (absl::StartsWith(head, "POST"))
      return Answer{++completions == 1
                        ? LoopbackHttp::Error(200, "InternalError")
                        : LoopbackHttp::Http(200, "<x/>")};
    return Answer{LoopbackHttp::Http(200, "", "ETag: \"e\"\r\n")};
  });
  EXPECT_EQ(store_->PutFile("k", &files_, "/f"), absl::OkStatus());
  EXPECT_EQ(completions, 2);
}

TEST_F(S3Parts, SeesThatACompletionWhoseAnswerWasLostIsDone) {
  WriteFile(1500);
  std::atomic<int> completions{0};
  std::atomic<int> object_bytes{1500};
  Serve([&](int, const std::string& head, const std::string&) -> Answer {
    if (absl::StrContains(head, "?uploads="))
      return {LoopbackHttp::Http(200, kBegun)};
    if (absl::StartsWith(head, "POST")) {
      if (++completions == 1) return {};
      return {LoopbackHttp::Error(404, "NoSuchUpload")};
    }
    if (absl::StartsWith(head, "GET")) {
      return {LoopbackHttp::Http(
          206, "x",
          absl::StrCat("Content-Range: bytes ", object_bytes - 1, "-",
                       object_bytes - 1, "/", object_bytes.load(), "\r\n"))};
    }
    return {LoopbackHttp::Http(200, "", "ETag: \"e\"\r\n")};
  });
  EXPECT_EQ(store_->PutFile("k", &files_, "/f"), absl::OkStatus());
  // The existing object is an older one.
  completions = 0;
  object_bytes = 99;
  EXPECT_TRUE(absl::IsNotFound(store_->PutFile("k", &files_, "/f")));
}

}  // namespace
}  // namespace rankprobe
