// SPDX-License-Identifier: Apache-2.0
// The page's API with collectors that misbehave. Tests with working collectors
// are in tests/python/test_view_server.py.
#include "web/view_server.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "common/text/json_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/access.pb.h"
#include "web/http/testing/raw_client.h"

namespace rankprobe {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A collector that answers as the test requires.
class OddCollector final : public v1::ArchiveService::Service {
 public:
  using Writer = grpc::ServerWriter<v1::StepLedger>;

  OddCollector() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~OddCollector() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }

  grpc::Status ListRuns(grpc::ServerContext* context,
                        const v1::ListRunsRequest*,
                        v1::ListRunsResponse* response) override {
    return on_runs(context, response);
  }
  grpc::Status GetLedger(grpc::ServerContext* context,
                         const v1::GetLedgerRequest*, Writer* writer) override {
    return on_ledger(context, writer);
  }
  // Its next ListRuns lasts until it is cancelled.
  void HoldRuns(absl::Notification* began, absl::Notification* cancelled) {
    on_runs = [=](grpc::ServerContext* context, v1::ListRunsResponse*) {
      began->Notify();
      while (!context->IsCancelled()) std::this_thread::yield();
      cancelled->Notify();
      return grpc::Status::CANCELLED;
    };
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::shared_ptr<grpc::Channel> channel() {
    return server_->InProcessChannel(grpc::ChannelArguments());
  }

  std::function<grpc::Status(grpc::ServerContext*, v1::ListRunsResponse*)>
      on_runs;
  std::function<grpc::Status(grpc::ServerContext*, Writer*)> on_ledger;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class ViewServerTest : public ::testing::Test {
 protected:
  void Start() {
    options_.collector = collector_.address();
    auto view = ViewServer::Start(0, options_);
    ASSERT_TRUE(view.ok()) << view.status();
    view_ = *std::move(view);
    const std::vector<std::string> parts =
        absl::StrSplit(view_->address(), absl::ByAnyChar(":/="));
    ASSERT_EQ(parts.size(), 7u) << view_->address();
    port_ = std::atoi(parts[4].c_str());
    token_ = parts[6];
  }
  std::string Post(absl::string_view method) const {
    return absl::StrCat("POST /api/v1/ArchiveService/", method,
                        " HTTP/1.1\r\nHost: 127.0.0.1:", port_,
                        "\r\nAuthorization: Bearer ", token_,
                        "\r\nContent-Type: application/json\r\n"
                        "Content-Length: 2\r\nConnection: close\r\n\r\n{}");
  }
  // The complete answer.
  std::string Ask(absl::string_view method) const {
    RawClient client(port_);
    client.Say(Post(method));
    return client.Rest();
  }

  OddCollector collector_;
  GatewayOptions options_;
  std::unique_ptr<ViewServer> view_;
  int port_ = 0;
  std::string token_;
};

v1::StepLedger Line(size_t bytes) {
  v1::StepLedger line;
  line.set_host(std::string(bytes, 'h'));
  return line;
}

std::vector<std::string> LinesOf(const std::string& answer) {
  std::vector<std::string> lines = absl::StrSplit(Unchunked(answer), '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

TEST_F(ViewServerTest, AnAnswerThatIsTooLargeSaysSo) {
  options_.max_answer_bytes = 1 << 20;
  absl::Notification cancelled;
  collector_.on_runs = [](grpc::ServerContext*,
                          v1::ListRunsResponse* response) {
    response->add_runs()->set_run(std::string(1 << 20, 'r'));
    return grpc::Status::OK;
  };
  collector_.on_ledger = [&](grpc::ServerContext*,
                             OddCollector::Writer* writer) {
    while (writer->Write(Line(100 << 10))) {
    }
    cancelled.Notify();
    return grpc::Status::OK;
  };
  Start();
  const std::string unary = Ask("ListRuns");
  EXPECT_THAT(unary, StartsWith("HTTP/1.1 429 "));
  EXPECT_THAT(unary, HasSubstr("larger than 1 MiB"));
  const std::vector<std::string> lines = LinesOf(Ask("GetLedger"));
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_THAT(lines[9], HasSubstr("hhhh"));
  EXPECT_THAT(lines[10],
              StartsWith("{\"error\":{\"code\":\"RESOURCE_EXHAUSTED\""));
  cancelled.WaitForNotification();
}

TEST_F(ViewServerTest, AFailureBehindTheFirstLineIsTheLastLine) {
  int sent = 1;
  collector_.on_ledger = [&](grpc::ServerContext*,
                             OddCollector::Writer* writer) {
    for (int i = 0; i < sent; ++i) writer->Write(Line(1));
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "a \"torn\"\npage\xff");
  };
  Start();
  const std::string answer = Ask("GetLedger");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  const std::vector<std::string> lines = LinesOf(answer);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], StartsWith("{\"error\":{\"code\":\"DATA_LOSS\","));
  for (const std::string& line : lines)
    EXPECT_TRUE(IsJsonText(line, 10)) << line;
  sent = 0;
  const std::string at_once = Ask("GetLedger");
  EXPECT_THAT(at_once, StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(at_once, HasSubstr("\"DATA_LOSS\""));
}

TEST_F(ViewServerTest, AClientThatGoesAwayCancelsItsCall) {
  absl::Notification began, cancelled;
  collector_.HoldRuns(&began, &cancelled);
  Start();
  RawClient client(port_);
  client.Say(Post("ListRuns"));
  began.WaitForNotification();
  client.Close();
  cancelled.WaitForNotification();
}

TEST_F(ViewServerTest, ACallHasADeadline) {
  options_.timeout_seconds = 0.2;
  collector_.on_runs = [](grpc::ServerContext* context, v1::ListRunsResponse*) {
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  Start();
  const std::string answer = Ask("ListRuns");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(answer, HasSubstr("\"DEADLINE_EXCEEDED\""));
}

TEST_F(ViewServerTest, ASlowReaderHoldsTheCollectorBack) {
  constexpr int kLines = 512;
  options_.max_answer_bytes = size_t{1} << 30;
  std::atomic<int> sent{0};
  collector_.on_ledger = [&sent](grpc::ServerContext*,
                                 OddCollector::Writer* writer) {
    while (sent < kLines && writer->Write(Line(100 << 10))) ++sent;
    return grpc::Status::OK;
  };
  Start();
  RawClient client(port_, /*receive_buffer=*/16 << 10);
  client.Say(Post("GetLedger"));
  ASSERT_TRUE(client.More());
  // All bytes in transit: buffers of two connections, and the server's.
  EXPECT_LT(sent, kLines / 2);
  EXPECT_EQ(LinesOf(client.Rest()).size(), static_cast<size_t>(kLines));
  EXPECT_EQ(sent, kLines);
}

TEST_F(ViewServerTest, NamesOfRanksAreText) {
  const std::string name = "</script>\"\\\n\x01\u202e\u2028\U0001f600";
  collector_.on_runs = [&](grpc::ServerContext*,
                           v1::ListRunsResponse* response) {
    response->add_runs()->set_run(name);
    return grpc::Status::OK;
  };
  Start();
  const std::string answer = Ask("ListRuns");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  EXPECT_TRUE(IsJsonText(body, 10)) << body;
  EXPECT_THAT(body, HasSubstr("\"steps\":\"0\""));
}

TEST_F(ViewServerTest, ACollectorOfBeforeIsNamed) {
  collector_.on_runs = [](grpc::ServerContext*, v1::ListRunsResponse*) {
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  };
  Start();
  EXPECT_THAT(Ask("ListRuns"), HasSubstr("\"UNIMPLEMENTED\""));
}

// Rules as those of a collector, by the first word of the token; the rest of
// the token must not appear anywhere.
class OddCallers final : public CallerCheck {
 public:
  absl::StatusOr<Caller> Identify(absl::string_view token) const override {
    const std::string role(token.substr(0, token.find('-')));
    if (role != "viewer" && role != "operator")
      return absl::UnauthenticatedError("nobody knows it");
    return Caller{"somebody", role};
  }
  absl::Status MayCall(absl::string_view token,
                       absl::string_view path) const override {
    asked.push_back(std::string(path));
    const absl::StatusOr<Caller> caller = Identify(token);
    if (!caller.ok()) return caller.status();
    return CheckIsOperator(this, token, path);
  }
  mutable std::vector<std::string> asked;
};

class CollectorsPageTest : public ::testing::Test {
 protected:
  CollectorsPageTest() {
    HttpServerOptions http;
    http.check_token = [this](absl::string_view token) {
      return callers_.Identify(token).status();
    };
    auto server = HttpServer::Listen(std::move(http));
    EXPECT_TRUE(server.ok()) << server.status();
    port_ = (*server)->port();
    GatewayOptions options;
    options.collector = "node0:7411";
    options.channel = collector_.channel();
    options.callers = &callers_;
    auto view = ViewServer::Serve(*std::move(server), std::move(options), {});
    EXPECT_TRUE(view.ok()) << view.status();
    view_ = *std::move(view);
    collector_.on_runs = [this](grpc::ServerContext* context,
                                v1::ListRunsResponse*) {
      for (const auto& [name, value] : context->client_metadata())
        metadata_[std::string(name.data(), name.size())] =
            std::string(value.data(), value.size());
      return grpc::Status::OK;
    };
  }
  std::string Ask(absl::string_view head, absl::string_view token) const {
    RawClient client(port_);
    client.Say(absl::StrCat(
        head, " HTTP/1.1\r\nHost: 127.0.0.1:", port_,
        "\r\nAuthorization: Bearer ", token,
        "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        "Connection: close\r\n\r\n{}"));
    return client.Rest();
  }

  OddCollector collector_;
  OddCallers callers_;
  std::unique_ptr<ViewServer> view_;
  int port_ = 0;
  std::map<std::string, std::string> metadata_;
};

TEST_F(CollectorsPageTest, EachCallIsCheckedAndMadeAsWhoAsks) {
  constexpr char kRuns[] = "POST /api/v1/ArchiveService/ListRuns";
  EXPECT_EQ(view_->address(), absl::StrCat("http://127.0.0.1:", port_, "/"));
  EXPECT_THAT(Ask(kRuns, "other"), StartsWith("HTTP/1.1 401 "));
  EXPECT_TRUE(callers_.asked.empty());
  const std::string refused = Ask(kRuns, "viewer-1");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(refused, HasSubstr("somebody has the role viewer"));
  EXPECT_TRUE(metadata_.empty()) << "it came through";
  EXPECT_THAT(Ask(kRuns, "operator-1"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(metadata_["authorization"], "Bearer operator-1");
  EXPECT_THAT(metadata_["rankprobe-page-peer"], StartsWith("127.0.0.1:"));
  EXPECT_THAT(callers_.asked,
              ::testing::Each("/rankprobe.v1.ArchiveService/ListRuns"));
  // Tokens that metadata cannot carry are not sent.
  metadata_.clear();
  EXPECT_THAT(Ask(kRuns, "operator-\x80 "), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(metadata_.count("authorization"), 0u);
}

TEST_F(CollectorsPageTest, SaysWhoAsksAndThatThereAreNoJobs) {
  EXPECT_TRUE(absl::EndsWith(
      Ask("GET /api/v1/about", "viewer-1"),
      "\"collector\":\"node0:7411\",\"root\":\"\",\"jobs\":false,"
      "\"builds\":true,"
      "\"caller\":{\"name\":\"somebody\",\"role\":\"viewer\"}}"));
  for (const char* method :
       {"JobStart", "JobCancel", "JobDelete", "Graph/Build",
        "Graph/SaveMapping", "TensorLook"}) {
    EXPECT_THAT(Ask(absl::StrCat("POST /api/v1/", method), "viewer-1"),
                StartsWith("HTTP/1.1 403 "))
        << method;
  }
  EXPECT_THAT(Ask("POST /api/v1/JobStart", "operator-1"),
              HasSubstr("\"UNIMPLEMENTED\""));
  EXPECT_THAT(callers_.asked,
              ::testing::ElementsAre("/rankprobe.v1.ArchiveService/GetTensor"));
}

TEST_F(CollectorsPageTest, ItsEndEndsWhatIsAnswered) {
  absl::Notification began, cancelled;
  collector_.HoldRuns(&began, &cancelled);
  std::thread asking([this] {
    (void)Ask("POST /api/v1/ArchiveService/ListRuns", "operator-1");
  });
  began.WaitForNotification();
  view_.reset();
  cancelled.WaitForNotification();
  asking.join();
}

// One list determines what a page may do; this is a second copy of it on
// purpose.
TEST(GatewayTest, NothingIsReachableThatDeletesOrWritesToTheCollectorsDisk) {
  const std::set<std::string> switches = {
      "ControlService/SetConfig", "ControlService/SetDumpEnable",
      "ControlService/SetTriggers", "ControlService/ShipFlight"};
  std::set<std::string> found;
  for (const std::string& name : Gateway::Methods()) {
    const std::vector<std::string> parts = absl::StrSplit(name, '/');
    const google::protobuf::MethodDescriptor* const method =
        google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
            absl::StrCat("rankprobe.v1.", parts[0], ".", parts[1]));
    ASSERT_NE(method, nullptr) << name;
    EXPECT_FALSE(method->client_streaming()) << name;
    const v1::Access& access = method->options().GetExtension(v1::access);
    if (access.role() == v1::ACCESS_ROLE_VIEWER) continue;
    EXPECT_EQ(access.role(), v1::ACCESS_ROLE_OPERATOR) << name;
    EXPECT_TRUE(access.audited()) << name;
    found.insert(name);
  }
  EXPECT_EQ(found, switches);
}

TEST(GatewayTest, CodesHaveTheirStatus) {
  const std::pair<absl::StatusCode, int> expected[] = {
      {absl::StatusCode::kOk, 200},
      {absl::StatusCode::kInvalidArgument, 400},
      {absl::StatusCode::kUnauthenticated, 401},
      {absl::StatusCode::kPermissionDenied, 403},
      {absl::StatusCode::kNotFound, 404},
      {absl::StatusCode::kResourceExhausted, 429},
      {absl::StatusCode::kUnavailable, 503},
      {absl::StatusCode::kInternal, 500},
      {absl::StatusCode::kAborted, 500},
  };
  for (const auto& [code, status] : expected)
    EXPECT_EQ(HttpStatusOf(code), status) << absl::StatusCodeToString(code);
}

}  // namespace
}  // namespace rankprobe
