// SPDX-License-Identifier: Apache-2.0
// One connection of the HTTP server: it reads a request, a worker answers it,
// it writes the answer, and repeats. Owned by its pending operations; there is
// at least one until it is closed.
//
// Everything runs on the socket's strand except the handler, which runs in a
// worker and exchanges data with the strand through ReplyStream. A failure
// closes the connection.
#ifndef RANKPROBE_WEB_HTTP_CONNECTION_H_
#define RANKPROBE_WEB_HTTP_CONNECTION_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/system/error_code.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "web/http/http_server.h"
#include "web/http/peer_stream.h"
#include "web/http/reply_stream.h"
#include "web/http/request_guard.h"

namespace rankprobe {

// State shared by the connections of a server; outlives them.
struct ConnectionRoom {
  HttpServerOptions options;
  HttpHandler handler;
  GuardRules rules;
  boost::asio::thread_pool* workers = nullptr;
  // Null for plain text.
  boost::asio::ssl::context* tls = nullptr;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // The socket's executor is a strand. `ended` is called once, by the thread
  // that releases the connection last.
  Connection(boost::asio::ip::tcp::socket socket, const ConnectionRoom* room,
             std::function<void()> ended);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // These may be called by any thread.
  void Start();
  // Closes as soon as no answer is in progress.
  void Drain();
  // Closes immediately; a running handler is notified.
  void Abort();
  // Whether an authorized request has arrived.
  bool proven() const { return proven_; }
  // Whether no request is being read or answered.
  bool idle() const { return idle_; }

 private:
  using Error = boost::system::error_code;

  void Handshake();
  void NextRequest();
  void Fill();
  void OnFilled(Error error, size_t bytes);
  void ReadHead();
  void OnHead(Error error);
  void OnBody(Error error);
  void Handle();
  void Pump();
  void WriteSlice();
  void OnWritten(Error error, size_t bytes);
  void AnswerDone();
  // Sends a refusal without calling the handler; it is the connection's last
  // answer.
  void Refuse(const Refusal& refusal);
  void RefuseFault(Error error);
  // Lets the client read the answer before the connection is closed.
  void Linger();
  void Discard();
  void Close();
  void Arm(absl::Duration timeout);

  PeerStream stream_;
  const ConnectionRoom& room_;
  const std::function<void()> ended_;
  boost::asio::steady_timer timer_;
  // Identifies the latest use of the timer, so that an earlier expiry is
  // ignored.
  uint64_t armed_ = 0;
  boost::beast::flat_buffer buffer_;
  std::optional<
      boost::beast::http::request_parser<boost::beast::http::string_body>>
      parser_;
  // Set while a request is being answered.
  std::shared_ptr<ReplyStream> reply_;
  std::string out_;
  size_t written_ = 0;
  size_t discarded_ = 0;
  // Token of the request that is being read.
  std::string token_;
  std::atomic<bool> proven_ = false;
  std::atomic<bool> idle_ = false;
  bool filling_ = false;
  bool writing_ = false;
  bool last_ = false;
  bool lingering_ = false;
  bool draining_ = false;
  bool closed_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_CONNECTION_H_
