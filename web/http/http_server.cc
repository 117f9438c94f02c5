// SPDX-License-Identifier: Apache-2.0
#include "web/http/http_server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
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

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/monotonic_time.h"
#include "common/base/status_macros.h"
#include "web/http/connection.h"

namespace rankprobe {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

constexpr int kIoThreads = 2;

std::string Bracketed(const asio::ip::address& address) {
  const std::string text = address.to_string();
  return address.is_v6() ? absl::StrCat("[", text, "]") : text;
}

class Server final : public HttpServer {
 public:
  explicit Server(HttpServerOptions options)
      : workers_(options.max_connections),
        acceptor_(asio::make_strand(io_)),
        retry_(acceptor_.get_executor()) {
    room_.options = std::move(options);
    room_.workers = &workers_;
  }
  ~Server() override { Stop(); }

  absl::Status Listen();
  uint16_t port() const override { return port_; }
  std::string origin() const override { return origin_; }
  void Serve(HttpHandler handler) override;
  void Stop() override;

 private:
  void MakeRules(const asio::ip::address& address);
  void Accept();
  void OnAccepted(Error error, tcp::socket socket);
  // Returns false if all connections are in use by authorized clients. The
  // caller must release `looked_at` without holding the lock.
  bool MakeRoom(std::vector<std::shared_ptr<Connection>>* looked_at)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Take(tcp::socket socket);
  static void TurnAway(tcp::socket socket);
  void ForEach(void (Connection::*method)());
  void Ended();

  // Declared before `io_`, whose connections use it, so that it outlives them.
  std::unique_ptr<asio::ssl::context> tls_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{
      io_.get_executor()};
  ConnectionRoom room_;
  asio::thread_pool workers_;
  // Used on their strand after Listen.
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  uint16_t port_ = 0;
  std::string origin_;
  std::vector<std::thread> threads_;
  bool stopped_ = false;

  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::weak_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Server::Listen() {
  HttpServerOptions& options = room_.options;
  Error error;
  const asio::ip::address address =
      asio::ip::make_address(options.address, error);
  if (error && options.unauthenticated) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot listen on ", options.address, ": not an IP address"));
  }
  if (error || (!options.tls.has_value() && !options.unauthenticated &&
                !address.is_loopback())) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.address,
                     " is not an address of this machine alone, like "
                     "127.0.0.1"));
  }
  if (!options.unauthenticated && options.token.empty() && !options.check_token)
    return absl::InvalidArgumentError("a server needs a token");
  if (options.tls.has_value()) {
    RP_ASSIGN_OR_RETURN(tls_, MakeTlsContext(*options.tls));
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        NamesOfCertificate(options.tls->cert_pem));
    options.names.insert(options.names.end(), names.begin(), names.end());
    options.tls->key_pem.clear();
    room_.tls = tls_.get();
  }
  const tcp::endpoint wanted(address, options.port);
  acceptor_.open(wanted.protocol(), error);
  // Without this option the port is unavailable for a minute after each use.
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(wanted, error);
  if (!error)
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", Bracketed(address), ":", options.port,
                     ": ", error.message()));
  }
  port_ = acceptor_.local_endpoint(error).port();
  MakeRules(address);
  return absl::OkStatus();
}

// Names of the loopback interface cannot belong to another site.
void Server::MakeRules(const asio::ip::address& address) {
  const HttpServerOptions& options = room_.options;
  GuardRules& rules = room_.rules;
  rules.token = options.token;
  rules.check_token = options.check_token;
  rules.scheme = options.tls.has_value() ? "https" : "http";
  const std::string own =
      address.is_unspecified() ? "127.0.0.1" : Bracketed(address);
  std::vector<std::string> names = {own, "localhost"};
  names.insert(names.end(), options.names.begin(), options.names.end());
  const bool usual = port_ == (options.tls.has_value() ? 443 : 80);
  for (const std::string& name : names) {
    const std::string lower = absl::AsciiStrToLower(name);
    for (const std::string& host :
         {absl::StrCat(lower, ":", port_), usual ? lower : std::string()}) {
      if (!host.empty() && !absl::c_linear_search(rules.hosts, host))
        rules.hosts.push_back(host);
    }
  }
  // A certificate has names of the machine, and possibly not its address.
  const std::string& shown = options.tls.has_value() && !options.names.empty()
                                 ? options.names.front()
                                 : own;
  origin_ = absl::StrCat(rules.scheme, "://", absl::AsciiStrToLower(shown), ":",
                         port_);
}

void Server::Serve(HttpHandler handler) {
  room_.handler = std::move(handler);
  asio::post(acceptor_.get_executor(), [this] { Accept(); });
  for (int i = 0; i < kIoThreads; ++i)
    threads_.emplace_back([this] { io_.run(); });
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
    // Descriptors are exhausted or the client has disconnected: wait before the
    // next attempt.
    retry_.expires_after(std::chrono::milliseconds(50));
    retry_.async_wait([this](Error cancelled) {
      if (!cancelled) Accept();
    });
    return;
  }
  bool has_room = false;
  // Released after the lock: the last reference to a connection calls Ended(),
  // which takes the lock.
  std::vector<std::shared_ptr<Connection>> looked_at;
  {
    const absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    has_room = open_ < room_.options.max_connections ||
               // A connection that was asked to close still exists for a
               // moment.
               (open_ < 2 * room_.options.max_connections &&
                room_.options.strangers_make_way && MakeRoom(&looked_at));
    if (has_room) ++open_;
  }
  if (has_room) {
    Take(std::move(socket));
  } else {
    TurnAway(std::move(socket));
  }
  Accept();
}

bool Server::MakeRoom(std::vector<std::shared_ptr<Connection>>* looked_at) {
  auto found = connections_.end();
  for (auto known = connections_.begin(); known != connections_.end();
       ++known) {
    looked_at->push_back(known->lock());
    const Connection* const connection = looked_at->back().get();
    if (connection == nullptr) continue;
    if (!connection->proven()) {
      found = known;
      break;
    }
    if (found == connections_.end() && connection->idle()) found = known;
  }
  if (found == connections_.end()) return false;
  if (const auto connection = found->lock()) connection->Abort();
  connections_.erase(found);
  return true;
}

void Server::Take(tcp::socket socket) {
  const auto connection = std::make_shared<Connection>(
      std::move(socket), &room_, [this] { Ended(); });
  {
    const absl::MutexLock lock(&mutex_);
    // Stop would not see this connection.
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
  // Must not block, because the next connection is accepted after this.
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
  // Handlers end first, because they hold references to connections. The
  // threads of `io_` still run here, since Abort() is posted to them and wakes
  // handlers.
  if (!threads_.empty()) workers_.join();
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(
    HttpServerOptions options) {
  auto server = std::make_unique<Server>(std::move(options));
  RP_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    HttpServerOptions options, HttpHandler handler) {
  RP_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server,
                      Listen(std::move(options)));
  server->Serve(std::move(handler));
  return server;
}

}  // namespace rankprobe
