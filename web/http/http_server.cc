// SPDX-License-Identifier: Apache-2.0
#include "web/http/http_server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/monotonic_time.h"
#include "web/http/connection.h"

namespace rankprobe {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

constexpr int kIoThreads = 2;

class Server final : public HttpServer {
 public:
  Server(HttpServerOptions options, HttpHandler handler)
      : workers_(options.max_connections),
        acceptor_(asio::make_strand(io_)),
        retry_(acceptor_.get_executor()) {
    room_.options = std::move(options);
    room_.handler = std::move(handler);
    room_.workers = &workers_;
  }
  ~Server() override { Stop(); }

  absl::Status Listen();
  uint16_t port() const override { return port_; }
  void Stop() override;

 private:
  void Accept();
  void OnAccepted(Error error, tcp::socket socket);
  void Serve(tcp::socket socket);
  static void TurnAway(tcp::socket socket);
  void ForEach(void (Connection::*method)());
  void Ended();

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{
      io_.get_executor()};
  ConnectionRoom room_;
  asio::thread_pool workers_;
  // On their strand, after Listen.
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
  bool stopped_ = false;

  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::weak_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Server::Listen() {
  const HttpServerOptions& options = room_.options;
  Error error;
  const asio::ip::address_v4 address =
      asio::ip::make_address_v4(options.address, error);
  if (error || !address.is_loopback()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.address,
                     " is no address of this machine alone, like "
                     "127.0.0.1"));
  }
  if (options.token.empty())
    return absl::InvalidArgumentError("a server needs a token");
  const tcp::endpoint wanted(address, options.port);
  acceptor_.open(wanted.protocol(), error);
  // Without it a port is taken for a minute after each use.
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(wanted, error);
  if (!error)
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", options.address, ":", options.port,
                     ": ", error.message()));
  }
  port_ = acceptor_.local_endpoint(error).port();
  room_.rules.hosts = {absl::StrCat(options.address, ":", port_),
                       absl::StrCat("localhost:", port_)};
  room_.rules.token = options.token;
  asio::post(acceptor_.get_executor(), [this] { Accept(); });
  for (int i = 0; i < kIoThreads; ++i)
    threads_.emplace_back([this] { io_.run(); });
  return absl::OkStatus();
}

void Server::Accept() {
  acceptor_.async_accept(asio::make_strand(io_),
                         [this](Error error, tcp::socket socket) {
                           OnAccepted(error, std::move(socket));
                         });
}

void Server::OnAccepted(Error error, tcp::socket socket) {
  if (error) {
    {
      const absl::MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    // Descriptors are spent, or a client was gone again: no reason to spin.
    retry_.expires_after(std::chrono::milliseconds(50));
    retry_.async_wait([this](Error cancelled) {
      if (!cancelled) Accept();
    });
    return;
  }
  bool has_room = false;
  {
    const absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    has_room = open_ < room_.options.max_connections;
    if (has_room) ++open_;
  }
  if (has_room) {
    Serve(std::move(socket));
  } else {
    TurnAway(std::move(socket));
  }
  Accept();
}

void Server::Serve(tcp::socket socket) {
  const auto connection = std::make_shared<Connection>(
      std::move(socket), &room_, [this] { Ended(); });
  {
    const absl::MutexLock lock(&mutex_);
    // Stop would not see it.
    if (stopping_) return;
    connections_.remove_if(
        [](const std::weak_ptr<Connection>& known) { return known.expired(); });
    connections_.push_back(connection);
  }
  connection->Start();
}

void Server::TurnAway(tcp::socket socket) {
  const std::string body =
      ErrorJson("UNAVAILABLE", "this server has too many connections");
  const size_t length = body.size();
  const std::string answer =
      ResponseHead(503, kJsonType, &length, /*close=*/true) + body;
  Error ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(answer), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

void Server::ForEach(void (Connection::*method)()) {
  std::vector<std::shared_ptr<Connection>> connections;
  {
    const absl::MutexLock lock(&mutex_);
    for (const std::weak_ptr<Connection>& known : connections_) {
      if (auto connection = known.lock())
        connections.push_back(std::move(connection));
    }
  }
  for (const auto& connection : connections) ((*connection).*method)();
}

void Server::Ended() {
  {
    const absl::MutexLock lock(&mutex_);
    --open_;
  }
  changed_.NotifyAll();
}

void Server::Stop() {
  if (std::exchange(stopped_, true)) return;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  asio::post(acceptor_.get_executor(), [this] {
    Error ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  });
  ForEach(&Connection::Drain);
  {
    const absl::MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, room_.options.stop_grace, [this] {
      mutex_.AssertHeld();
      return open_ == 0;
    });
  }
  ForEach(&Connection::Abort);
  // Handlers end first: what they hold of a connection goes with them.
  if (!threads_.empty()) workers_.join();
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    HttpServerOptions options, HttpHandler handler) {
  auto server =
      std::make_unique<Server>(std::move(options), std::move(handler));
  if (const absl::Status status = server->Listen(); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace rankprobe
