// SPDX-License-Identifier: Apache-2.0
// Any bytes as what a client of the page's server says on one connection: it
// ends, and nothing below /api/ is answered without the token.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "web/http/connection.h"

namespace {

constexpr char kToken[] = "0123456789abcdef";

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: broken: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace asio = boost::asio;
  const absl::string_view said(reinterpret_cast<const char*>(data), size);
  // The pool lives as long as the process: one thread is made once.
  static auto* const workers = new asio::thread_pool(1);
  rankprobe::ConnectionRoom room;
  room.workers = workers;
  room.rules = {{"127.0.0.1:80"}, kToken};
  room.options.max_header_bytes = 1 << 10;
  room.options.max_body_bytes = 1 << 10;
  room.handler = [said](const rankprobe::HttpRequest& request,
                        rankprobe::HttpReply* reply) {
    Require(request.method == "GET" || request.method == "POST", "the method");
    Require(request.body.size() <= 1 << 10, "the limit of a body");
    Require(!absl::StartsWith(request.path, "/api/") ||
                absl::StrContains(said, kToken),
            "the token");
    Require(absl::StrContains(said, "127.0.0.1:80"), "the host");
    reply->Begin(200, rankprobe::kJsonLinesType);
    (void)reply->Write(request.path);
  };
  int ends[2];
  Require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
          "a socket");
  Require(::send(ends[0], data, size, MSG_NOSIGNAL | MSG_DONTWAIT) ==
              static_cast<ssize_t>(size),
          "a socket that takes the input");
  ::shutdown(ends[0], SHUT_WR);
  asio::io_context io;
  asio::ip::tcp::socket socket(asio::make_strand(io));
  socket.assign(asio::ip::tcp::v4(), ends[1]);
  std::atomic<bool> ended = false;
  std::make_shared<rankprobe::Connection>(std::move(socket), &room, [&ended] {
    ended = true;
  })->Start();
  // A worker may still hold the connection when nothing waits for bytes.
  while (!ended) {
    io.run();
    io.restart();
  }
  // It may be the worker that is about to let go of the rest of it.
  std::promise<void> idle;
  asio::post(*workers, [&idle] { idle.set_value(); });
  idle.get_future().wait();
  ::close(ends[0]);
  return 0;
}
