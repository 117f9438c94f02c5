// SPDX-License-Identifier: Apache-2.0
#include "web/http/http_server.h"

#include <atomic>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "web/http/testing/raw_client.h"
#include "web/http/testing/tls_peer.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpHandler handler) {
    options_.token = kToken;
    auto server = HttpServer::Start(options_, std::move(handler));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // Answers with the request.
  void StartEcho() {
    Start([](const HttpRequest& request, HttpReply* reply) {
      reply->Send(
          200, "text/plain",
          absl::StrCat(request.method, " ", request.path, " ", request.body));
    });
  }
  int port() const { return server_->port(); }
  std::string Host() const { return absl::StrCat("127.0.0.1:", port()); }
  std::string Get(absl::string_view path) const {
    return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", Host(),
                        "\r\n\r\n");
  }
  std::string GetAndClose(absl::string_view path) const {
    return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", Host(),
                        "\r\nConnection: close\r\n\r\n");
  }
  std::string PostHead(absl::string_view fields) const {
    return absl::StrCat("POST /api/v1/x HTTP/1.1\r\nHost: ", Host(),
                        "\r\nAuthorization: Bearer ", kToken,
                        "\r\nContent-Type: application/json\r\n", fields,
                        "\r\n");
  }

  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersOneAfterAnotherOnOneConnection) {
  StartEcho();
  RawClient client(port());
  client.Say(Get("/a?b=c"));
  const std::string first = client.Answer();
  EXPECT_THAT(first, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(first, HasSubstr("\r\nContent-Type: text/plain\r\n"));
  for (const char* field :
       {"Content-Security-Policy: default-src 'none'; script-src 'self'; "
        "style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer",
        "Cross-Origin-Resource-Policy: same-origin",
        "Cache-Control: no-store"}) {
    EXPECT_THAT(first, HasSubstr(absl::StrCat("\r\n", field, "\r\n")));
  }
  EXPECT_THAT(first, Not(HasSubstr("Access-Control")));
  EXPECT_THAT(first, Not(HasSubstr("Set-Cookie")));
  EXPECT_TRUE(absl::EndsWith(first, "\r\n\r\nGET /a "));
  client.Say(PostHead("Content-Length: 7\r\n") + "{\"a\":1}");
  EXPECT_TRUE(absl::EndsWith(client.Answer(), "POST /api/v1/x {\"a\":1}"));
  client.Say(PostHead("Transfer-Encoding: chunked\r\n") +
             "2\r\n{\"\r\n3\r\na\":\r\n2\r\n1}\r\n0\r\n\r\n");
  EXPECT_TRUE(absl::EndsWith(client.Answer(), "POST /api/v1/x {\"a\":1}"));
  // The last answer is announced as the last one.
  client.Say(GetAndClose("/b"));
  const std::string last = client.Rest();
  EXPECT_THAT(last, HasSubstr("Connection: close\r\n"));
  EXPECT_TRUE(absl::EndsWith(last, "GET /b "));
}

TEST_F(HttpServerTest, RefusesBeforeTheBodyComes) {
  std::atomic<int> asked{0};
  Start([&asked](const HttpRequest&, HttpReply* reply) {
    ++asked;
    reply->Send(200, "text/plain", "");
  });
  const std::string length = "Content-Length: 1000\r\n\r\n";
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"},
      {"GET / HTTP/1.1\r\n\r\n", "400"},
      {absl::StrCat("GET / HTTP/1.1\r\nHost: ", Host(),
                    "\r\nOrigin: http://evil.example\r\n\r\n"),
       "403"},
      {absl::StrCat("POST /api/v1/x HTTP/1.1\r\nHost: ", Host(),
                    "\r\nContent-Type: application/json\r\n", length),
       "401"},
      {absl::StrCat("POST /api/v1/x HTTP/1.1\r\nHost: ", Host(),
                    "\r\nAuthorization: Bearer ", kToken,
                    "\r\nContent-Type: text/plain\r\n", length),
       "415"},
      {absl::StrCat("DELETE / HTTP/1.1\r\nHost: ", Host(), "\r\n", length),
       "405"},
      {absl::StrCat("GET / HTTP/1.0\r\nHost: ", Host(), "\r\n\r\n"), "505"},
      {absl::StrCat("GET http://", Host(), "/ HTTP/1.1\r\nHost: ", Host(),
                    "\r\n\r\n"),
       "400"},
  };
  for (const auto& [request, status] : refused) {
    RawClient client(port());
    client.Say(request);
    const std::string answer = client.Rest();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 " + status)) << request;
    EXPECT_THAT(answer, HasSubstr("{\"error\":{\"code\":\"")) << request;
    EXPECT_THAT(answer, HasSubstr("Connection: close\r\n")) << request;
  }
  EXPECT_EQ(asked, 0);
}

TEST_F(HttpServerTest, BodiesAreBounded) {
  StartEcho();
  const std::string too_large(options_.max_body_bytes + 1, 'x');
  {
    RawClient client(port());
    client.Say(
        PostHead(absl::StrCat("Content-Length: ", too_large.size(), "\r\n")));
    EXPECT_THAT(client.Rest(), StartsWith("HTTP/1.1 413 ")) << "unsent";
  }
  {
    RawClient client(port());
    client.Say(PostHead("Transfer-Encoding: chunked\r\n") +
               absl::StrCat(absl::Hex(too_large.size()), "\r\n", too_large));
    EXPECT_THAT(client.Rest(), StartsWith("HTTP/1.1 413 "));
  }
  RawClient client(port());
  const absl::string_view largest =
      absl::string_view(too_large).substr(0, options_.max_body_bytes);
  client.Say(
      PostHead(absl::StrCat("Content-Length: ", largest.size(), "\r\n")));
  client.Say(largest);
  EXPECT_TRUE(absl::EndsWith(client.Answer(), largest));
}

TEST_F(HttpServerTest, AFloodOfHeaderFieldsIsCut) {
  StartEcho();
  RawClient client(port());
  client.Say(absl::StrCat("GET / HTTP/1.1\r\nHost: ", Host(), "\r\n"));
  const std::string field =
      absl::StrCat("X-Flood: ", std::string(1000, 'x'), "\r\n");
  size_t said = 0;
  while (said < (64u << 20) && client.Say(field)) said += field.size();
  EXPECT_LT(said, 64u << 20);
  // The reset may discard the answer.
  RawClient one_line(port());
  one_line.Say(absl::StrCat("GET /", std::string(20000, 'x')));
  EXPECT_THAT(one_line.Rest(), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, ClientsThatAreSlowAreLeft) {
  options_.idle_timeout = absl::Milliseconds(100);
  options_.request_timeout = absl::Milliseconds(100);
  StartEcho();
  RawClient silent(port());
  RawClient half_head(port());
  half_head.Say("GET / HTTP/1.1\r\nHost: ");
  RawClient half_body(port());
  half_body.Say(PostHead("Content-Length: 10\r\n") + "{");
  // A client that sends its request in time, which may need several attempts on
  // a busy machine.
  std::unique_ptr<RawClient> idle;
  std::string answer;
  for (int i = 0; i < 100 && answer.empty(); ++i) {
    idle = std::make_unique<RawClient>(port());
    idle->Say(Get("/"));
    answer = idle->Answer();
  }
  EXPECT_THAT(answer, HasSubstr("GET /"));
  for (RawClient* client : {&silent, &half_head, &half_body, idle.get()})
    EXPECT_EQ(client->Rest(), "");
}

TEST_F(HttpServerTest, RequestsInARowAreAnsweredInTheirOrder) {
  StartEcho();
  RawClient client(port());
  client.Say(Get("/1") + PostHead("Content-Length: 2\r\n") + "{}" + Get("/3"));
  EXPECT_TRUE(absl::EndsWith(client.Answer(), "GET /1 "));
  EXPECT_TRUE(absl::EndsWith(client.Answer(), "POST /api/v1/x {}"));
  EXPECT_TRUE(absl::EndsWith(client.Answer(), "GET /3 "));
}

TEST_F(HttpServerTest, GarbageBehindARequestEndsTheConnection) {
  StartEcho();
  for (const std::string& garbage :
       {std::string("\x16\x03\x01\x02", 4), std::string("\0\0\0\0\r\n\r\n", 8),
        std::string("GET\r\n\r\n"), std::string("{}{}{}\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nHost : x\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\n Host: x\r\n\r\n"),
        PostHead("Content-Length: 1\r\nContent-Length: 2\r\n"),
        PostHead("Content-Length: -1\r\n"),
        PostHead("Transfer-Encoding: chunked\r\n") + "zz\r\n"}) {
    RawClient client(port());
    client.Say(Get("/1") + garbage);
    EXPECT_TRUE(absl::EndsWith(client.Answer(), "GET /1 "));
    EXPECT_THAT(client.Answer(), StartsWith("HTTP/1.1 400 ")) << garbage;
    EXPECT_EQ(client.Rest(), "");
  }
}

TEST_F(HttpServerTest, ConnectionsAreCounted) {
  options_.max_connections = 4;
  StartEcho();
  std::vector<std::unique_ptr<RawClient>> held;
  for (int i = 0; i < 4; ++i) {
    held.push_back(std::make_unique<RawClient>(port()));
    held.back()->Say(Get("/"));
    EXPECT_THAT(held.back()->Answer(), StartsWith("HTTP/1.1 200 "));
  }
  EXPECT_THAT(RawClient(port()).Rest(), StartsWith("HTTP/1.1 503 "));
  held.pop_back();
  // The server detects it a little later.
  std::string answer;
  while (!absl::StartsWith(answer, "HTTP/1.1 200 ")) {
    RawClient next(port());
    next.Say(Get("/"));
    answer = next.Answer();
  }
}

TEST_F(HttpServerTest, PiecesCostABoundedBuffer) {
  constexpr size_t kPiece = 64 << 10;
  constexpr size_t kPieces = 1024;
  std::atomic<size_t> written{0};
  Start([&written](const HttpRequest&, HttpReply* reply) {
    reply->Begin(200, kJsonLinesType);
    for (size_t i = 0; i < kPieces; ++i) {
      if (!reply->Write(std::string(kPiece, static_cast<char>('a' + i % 26))))
        return;
      ++written;
    }
  });
  RawClient client(port(), /*receive_buffer=*/16 << 10);
  client.Say(GetAndClose("/"));
  ASSERT_TRUE(client.More());
  // All bytes in transit: the kernel's buffers and the server's.
  const size_t before = written;
  EXPECT_LT(before, kPieces / 2);
  const std::string body = Unchunked(client.Rest());
  EXPECT_EQ(written, kPieces);
  ASSERT_EQ(body.size(), kPieces * kPiece);
  for (size_t i = 0; i < kPieces; ++i)
    ASSERT_EQ(body[i * kPiece], static_cast<char>('a' + i % 26)) << i;
}

TEST_F(HttpServerTest, AHandlerIsToldThatItsClientHasGone) {
  absl::Notification began, told;
  Start([&](const HttpRequest&, HttpReply* reply) {
    reply->OnGone([&told] { told.Notify(); });
    began.Notify();
    told.WaitForNotification();
    EXPECT_FALSE(reply->Write("x"));
  });
  RawClient client(port());
  client.Say(Get("/"));
  began.WaitForNotification();
  client.Close();
  told.WaitForNotification();
  server_->Stop();
}

TEST_F(HttpServerTest, AClientThatTakesNothingIsLeft) {
  options_.write_timeout = absl::Milliseconds(100);
  absl::Notification left;
  Start([&left](const HttpRequest&, HttpReply* reply) {
    reply->Begin(200, kJsonLinesType);
    while (reply->Write(std::string(64 << 10, 'x'))) {
    }
    left.Notify();
  });
  RawClient client(port(), /*receive_buffer=*/16 << 10);
  client.Say(Get("/"));
  left.WaitForNotification();
  server_->Stop();
}

TEST_F(HttpServerTest, FaultsOfAHandlerAreA500) {
  Start([](const HttpRequest& request, HttpReply* reply) {
    if (request.path == "/throw") throw std::runtime_error("a \"fault\"");
    if (request.path == "/half") reply->Begin(200, "text/plain");
  });
  RawClient client(port());
  client.Say(Get("/nothing"));
  EXPECT_THAT(client.Answer(), StartsWith("HTTP/1.1 500 "));
  client.Say(Get("/throw"));
  EXPECT_THAT(client.Answer(), HasSubstr("a \\\"fault\\\""));
  client.Say(GetAndClose("/half"));
  EXPECT_EQ(Unchunked(client.Rest()), "");
}

TEST_F(HttpServerTest, StopEndsWhatIsUnderWay) {
  options_.stop_grace = absl::Milliseconds(50);
  absl::Notification began, told;
  Start([&](const HttpRequest& request, HttpReply* reply) {
    if (request.path != "/wait") return;
    reply->OnGone([&told] { told.Notify(); });
    began.Notify();
    told.WaitForNotification();
  });
  RawClient idle(port());
  RawClient half(port());
  half.Say("GET /");
  RawClient waits(port());
  waits.Say(Get("/wait"));
  began.WaitForNotification();
  server_->Stop();
  EXPECT_TRUE(told.HasBeenNotified());
  for (RawClient* client : {&idle, &half, &waits})
    EXPECT_EQ(client->Rest(), "");
}

TEST_F(HttpServerTest, StopLetsAnAnswerEnd) {
  options_.stop_grace = absl::Seconds(60);
  absl::Notification began, go_on;
  Start([&](const HttpRequest&, HttpReply* reply) {
    began.Notify();
    go_on.WaitForNotification();
    reply->Send(200, "text/plain", "whole");
  });
  RawClient client(port());
  client.Say(Get("/"));
  began.WaitForNotification();
  std::thread stopping([this] { server_->Stop(); });
  go_on.Notify();
  EXPECT_TRUE(absl::EndsWith(client.Rest(), "whole"));
  stopping.join();
}

TEST_F(HttpServerTest, ListensOnThisMachineOnly) {
  HttpServerOptions options;
  options.token = kToken;
  for (const char* address :
       {"0.0.0.0", "192.0.2.1", "::", "localhost", "", "evil.example"}) {
    options.address = address;
    EXPECT_TRUE(absl::IsInvalidArgument(
        HttpServer::Start(options, [](const HttpRequest&, HttpReply*) {})
            .status()))
        << address;
  }
  StartEcho();
  options.address = "127.0.0.1";
  options.port = server_->port();
  const absl::Status taken =
      HttpServer::Start(options, [](const HttpRequest&, HttpReply*) {
      }).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(taken));
  EXPECT_THAT(std::string(taken.message()), HasSubstr(Host()));
  options.port = 0;
  options.token = "";
  EXPECT_TRUE(absl::IsInvalidArgument(
      HttpServer::Start(options, [](const HttpRequest&, HttpReply*) {
      }).status()));
}

TEST_F(HttpServerTest, APortIsTakenBeforeAnybodyIsServed) {
  options_.token = kToken;
  auto bound = HttpServer::Listen(options_);
  ASSERT_TRUE(bound.ok()) << bound.status();
  options_.port = (*bound)->port();
  EXPECT_TRUE(
      absl::IsFailedPrecondition(HttpServer::Listen(options_).status()));
  server_ = *std::move(bound);
  // The connection waits in the kernel.
  RawClient early(port());
  early.Say(GetAndClose("/early"));
  server_->Serve([](const HttpRequest& request, HttpReply* reply) {
    reply->Send(200, "text/plain", request.path);
  });
  EXPECT_TRUE(absl::EndsWith(early.Rest(), "/early"));
}

TEST_F(HttpServerTest, NobodyNeedBeServed) {
  options_.token = kToken;
  auto bound = HttpServer::Listen(options_);
  ASSERT_TRUE(bound.ok()) << bound.status();
  const RawClient waits((*bound)->port());
  (*bound)->Stop();
}

TEST_F(HttpServerTest, ByTlsItHasTheNamesOfItsCertificate) {
  options_.tls = MakeIdentity("DNS:node0.example,IP:10.1.2.3");
  options_.names = {"Alias"};
  StartEcho();
  EXPECT_EQ(server_->origin(), absl::StrCat("https://alias:", port()));
  const auto ask = [this](const std::string& host, const std::string& more) {
    TlsClient client(port());
    EXPECT_TRUE(client.connected());
    client.Say(absl::StrCat("GET /a HTTP/1.1\r\nHost: ", host, "\r\n", more,
                            "Connection: close\r\n\r\n"));
    return client.Rest();
  };
  for (const char* name : {"node0.example", "NODE0.example", "10.1.2.3",
                           "alias", "localhost", "127.0.0.1"}) {
    const std::string host = absl::StrCat(name, ":", port());
    EXPECT_THAT(ask(host, absl::StrCat("Origin: https://", host, "\r\n")),
                StartsWith("HTTP/1.1 200 "))
        << host;
    EXPECT_THAT(ask(host, absl::StrCat("Origin: http://", host, "\r\n")),
                StartsWith("HTTP/1.1 403 "))
        << host;
  }
  for (const std::string host : {"node0.example", "evil.example", "0.0.0.0"}) {
    EXPECT_THAT(ask(host, ""), StartsWith("HTTP/1.1 403 ")) << host;
    EXPECT_THAT(ask(absl::StrCat(host, ":1"), ""), StartsWith("HTTP/1.1 403 "))
        << host;
  }
}

TEST_F(HttpServerTest, ALongAnswerComesWholeByTls) {
  options_.tls = MakeIdentity("DNS:localhost");
  const std::string long_text(3 << 20, 'x');
  Start([&long_text](const HttpRequest& request, HttpReply* reply) {
    if (request.method == "GET") {
      reply->Send(200, "text/plain", long_text);
      return;
    }
    reply->Begin(200, "text/plain");
    for (size_t at = 0; at < long_text.size(); at += 64 << 10)
      reply->Write(long_text.substr(at, 64 << 10));
  });
  TlsClient whole(port());
  whole.Say(GetAndClose("/"));
  EXPECT_TRUE(absl::EndsWith(whole.Rest(), long_text));
  TlsClient pieces(port());
  pieces.Say(PostHead("Content-Length: 2\r\nConnection: close\r\n") + "{}");
  EXPECT_EQ(Unchunked(pieces.Rest()), long_text);
}

TEST_F(HttpServerTest, WhoSpeaksNoTlsOrAnOldOneIsCutOff) {
  options_.tls = MakeIdentity("DNS:localhost");
  options_.request_timeout = absl::Milliseconds(200);
  StartEcho();
  RawClient plain(port());
  plain.Say(Get("/"));
  EXPECT_THAT(plain.Rest(), Not(HasSubstr("HTTP/1.1")));
  EXPECT_FALSE(TlsClient(port(), TLS1_1_VERSION).connected());
  // A client that sends nothing.
  RawClient silent(port());
  EXPECT_EQ(silent.Rest(), "");
  // In time, which a busy machine may prevent at first. OpenSSL raises a signal
  // when it writes to a closed connection.
  std::signal(SIGPIPE, SIG_IGN);
  std::string answer;
  for (int i = 0; i < 100 && answer.empty(); ++i) {
    TlsClient good(port());
    if (good.connected() && good.Say(GetAndClose("/b"))) answer = good.Rest();
  }
  EXPECT_TRUE(absl::EndsWith(answer, "GET /b ")) << answer;
}

// The two others of the next test.
absl::Status TwoTokens(absl::string_view token) {
  if (token == "rank") return absl::PermissionDeniedError("rank is agent");
  if (token == "vera" || token == "otto") return absl::OkStatus();
  return absl::UnauthenticatedError("no such token");
}

TEST_F(HttpServerTest, EachBringsATokenOfHisOwn) {
  options_.check_token = &TwoTokens;
  Start([](const HttpRequest& request, HttpReply* reply) {
    reply->Send(200, "text/plain", absl::StrCat("asked by ", request.token));
  });
  const auto ask = [this](const std::string& fields) {
    RawClient client(port());
    client.Say(absl::StrCat("GET /api/v1/x HTTP/1.1\r\nHost: ", Host(),
                            "\r\nConnection: close\r\n", fields, "\r\n"));
    return client.Rest();
  };
  for (const char* name : {"vera", "otto"}) {
    EXPECT_TRUE(absl::EndsWith(
        ask(absl::StrCat("Authorization: Bearer ", name, "\r\n")),
        absl::StrCat("asked by ", name)));
  }
  const std::string agent = ask("Authorization: Bearer rank\r\n");
  EXPECT_THAT(agent, StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(agent, HasSubstr("rank is agent"));
  for (const std::string fields :
       {"", "Authorization: Bearer \r\n", "Authorization: Bearer ver\r\n",
        "Authorization: Basic vera\r\n", "Authorization: vera\r\n",
        "Authorization: Bearer vera\r\nAuthorization: Bearer vera\r\n"}) {
    const std::string answer = ask(fields);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 ")) << fields;
    EXPECT_THAT(answer, HasSubstr("UNAUTHENTICATED")) << fields;
  }
  // The page is the same for all users.
  RawClient page(port());
  page.Say(GetAndClose("/"));
  EXPECT_THAT(page.Rest(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, StrangersMakeWayOfWhoMayAsk) {
  options_.max_connections = 8;
  options_.strangers_make_way = true;
  StartEcho();
  const std::string known = PostHead("Content-Length: 2\r\n") + "{}";
  RawClient first(port());
  first.Say(known);
  EXPECT_THAT(first.Answer(), StartsWith("HTTP/1.1 200 "));
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 12; ++i) {
    strangers.push_back(std::make_unique<RawClient>(port()));
    // A client that was authorized stays connected.
    first.Say(known);
    EXPECT_THAT(first.Answer(), StartsWith("HTTP/1.1 200 ")) << i;
  }
  RawClient later(port());
  later.Say(known);
  EXPECT_THAT(later.Answer(), StartsWith("HTTP/1.1 200 "));
  // The oldest connection was closed.
  EXPECT_EQ(strangers.front()->Rest(), "");
}

TEST_F(HttpServerTest, WhoIsIdleMakesWayOfWhoAsks) {
  options_.max_connections = 4;
  options_.strangers_make_way = true;
  absl::Notification began, go_on;
  Start([&](const HttpRequest& request, HttpReply* reply) {
    if (request.body == "[]") {
      began.Notify();
      go_on.WaitForNotification();
    }
    reply->Send(200, "text/plain", request.body);
  });
  const std::string head = PostHead("Content-Length: 2\r\n");
  RawClient busy(port());
  busy.Say(head + "[]");
  began.WaitForNotification();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 6; ++i) {
    idle.push_back(std::make_unique<RawClient>(port()));
    idle.back()->Say(head + "{}");
    EXPECT_TRUE(absl::EndsWith(idle.back()->Answer(), "{}")) << i;
  }
  EXPECT_EQ(idle.front()->Rest(), "");
  go_on.Notify();
  EXPECT_TRUE(absl::EndsWith(busy.Answer(), "[]"));
}

}  // namespace
}  // namespace rankprobe
