// SPDX-License-Identifier: Apache-2.0
#include "web/http/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rankprobe {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// Bytes that each write timeout applies to.
constexpr size_t kSlice = 256 << 10;
constexpr size_t kReadAhead = 4 << 10;
// Limits for bytes that a client still sends after a refused request.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr size_t kMostDiscarded = 4 << 20;

absl::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

std::string PathOf(boost::beast::string_view target) {
  return std::string(View(target.substr(0, target.find('?'))));
}

// Returns "127.0.0.1:50122" or "[::1]:50122", or "" if the client has
// disconnected.
std::string PeerOf(const asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  const asio::ip::tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return "";
  const std::string address = peer.address().to_string();
  return peer.address().is_v6() ? absl::StrCat("[", address, "]:", peer.port())
                                : absl::StrCat(address, ":", peer.port());
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, const ConnectionRoom* room,
                       std::function<void()> ended)
    : stream_(std::move(socket), room->tls),
      room_(*room),
      ended_(std::move(ended)),
      timer_(stream_.get_executor()),
      // The buffer holds a request's header and the bytes after it.
      buffer_(room->options.max_header_bytes + (64 << 10)) {}

Connection::~Connection() { ended_(); }

void Connection::Start() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    Error ignored;
    self->stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    if (self->stream_.is_tls()) {
      self->Handshake();
    } else {
      self->NextRequest();
    }
  });
}

void Connection::Handshake() {
  if (closed_) return;
  Arm(room_.options.request_timeout);
  stream_.async_handshake([self = shared_from_this()](Error error) {
    if (error) {
      self->Close();
    } else {
      self->NextRequest();
    }
  });
}

void Connection::Drain() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    self->draining_ = true;
    if (self->reply_ == nullptr && !self->writing_) self->Close();
  });
}

void Connection::Abort() {
  asio::post(stream_.get_executor(),
             [self = shared_from_this()] { self->Close(); });
}

void Connection::NextRequest() {
  if (closed_) return;
  if (draining_) {
    Close();
    return;
  }
  if (buffer_.size() > 0) {
    ReadHead();
    return;
  }
  idle_ = true;
  Arm(room_.options.idle_timeout);
  Fill();
}

// Reads the beginning of the next request, or, during an answer, detects that
// the client has disconnected.
void Connection::Fill() {
  if (filling_) return;
  filling_ = true;
  stream_.async_read_some(
      buffer_.prepare(kReadAhead),
      [self = shared_from_this()](Error error, size_t bytes) {
        self->OnFilled(error, bytes);
      });
}

void Connection::OnFilled(Error error, size_t bytes) {
  filling_ = false;
  if (error) {
    Close();
    return;
  }
  if (lingering_) {
    Discard();
    return;
  }
  buffer_.commit(bytes);
  // During an answer the next request stays in the buffer.
  if (reply_ == nullptr && !writing_ && !closed_) ReadHead();
}

void Connection::ReadHead() {
  idle_ = false;
  Arm(room_.options.request_timeout);
  parser_.emplace();
  parser_->header_limit(room_.options.max_header_bytes);
  parser_->body_limit(room_.options.max_body_bytes);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](Error error, size_t) {
                            self->OnHead(error);
                          });
}

void Connection::OnHead(Error error) {
  if (error) {
    RefuseFault(error);
    return;
  }
  const auto& message = parser_->get();
  if (message.version() != 11) {
    Refuse({505, "UNIMPLEMENTED", "HTTP/1.1 only"});
    return;
  }
  RequestHead head;
  head.method = std::string(View(message.method_string()));
  head.path = PathOf(message.target());
  for (const auto& field : message) {
    head.fields.emplace_back(View(field.name_string()), View(field.value()));
  }
  // Requests are refused before their body is read.
  if (!room_.options.unauthenticated) {
    if (const auto refusal = WhyRefused(head, room_.rules)) {
      Refuse(*refusal);
      return;
    }
  }
  token_ = TokenOf(head).value_or("");
  if (IsApi(head)) proven_ = true;
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](Error error, size_t) {
                     self->OnBody(error);
                   });
}

void Connection::OnBody(Error error) {
  if (error) {
    RefuseFault(error);
    return;
  }
  Handle();
}

void Connection::Handle() {
  if (closed_) return;
  if (draining_) {
    Close();
    return;
  }
  timer_.cancel();
  ++armed_;
  last_ = !parser_->keep_alive();
  HttpRequest request;
  auto message = parser_->release();
  request.method = std::string(View(message.method_string()));
  request.path = PathOf(message.target());
  request.body = std::move(message.body());
  request.token = std::move(token_);
  request.peer = PeerOf(stream_.socket());
  // The worker holds a reference to the connection as long as it may call this.
  reply_ = std::make_shared<ReplyStream>(
      [this] {
        asio::post(stream_.get_executor(),
                   [self = shared_from_this()] { self->Pump(); });
      },
      last_);
  if (buffer_.size() == 0) Fill();
  asio::post(*room_.workers, [self = shared_from_this(), reply = reply_,
                              request = std::move(request)] {
    try {
      self->room_.handler(request, reply.get());
    } catch (const std::exception& error) {
      reply->Send(500, kJsonType, ErrorJson("INTERNAL", error.what()));
    }
    reply->HandlerDone();
  });
}

void Connection::Pump() {
  if (closed_ || writing_ || reply_ == nullptr) return;
  out_.clear();
  if (reply_->Take(&out_)) {
    written_ = 0;
    WriteSlice();
  } else if (reply_->finished()) {
    AnswerDone();
  }
}

void Connection::WriteSlice() {
  writing_ = true;
  Arm(room_.options.write_timeout);
  asio::async_write(stream_,
                    asio::buffer(out_.data() + written_,
                                 std::min(kSlice, out_.size() - written_)),
                    [self = shared_from_this()](Error error, size_t bytes) {
                      self->OnWritten(error, bytes);
                    });
}

void Connection::OnWritten(Error error, size_t bytes) {
  writing_ = false;
  timer_.cancel();
  ++armed_;
  if (error || closed_) {
    Close();
    return;
  }
  written_ += bytes;
  if (written_ < out_.size()) {
    WriteSlice();
    return;
  }
  std::string().swap(out_);
  if (reply_ != nullptr) {
    Pump();
  } else {
    Linger();
  }
}

void Connection::AnswerDone() {
  reply_.reset();
  if (last_) {
    Linger();
  } else {
    NextRequest();
  }
}

void Connection::Refuse(const Refusal& refusal) {
  if (closed_) return;
  const std::string body = ErrorJson(refusal.code, refusal.message);
  const size_t length = body.size();
  out_ =
      ResponseHead(refusal.status, kJsonType, &length, /*close=*/true) + body;
  written_ = 0;
  WriteSlice();
}

void Connection::RefuseFault(Error error) {
  if (error == http::error::header_limit ||
      error == http::error::buffer_overflow) {
    Refuse({431, "INVALID_ARGUMENT", "the header is too large"});
  } else if (error == http::error::body_limit) {
    Refuse({413, "INVALID_ARGUMENT", "the body is too large"});
  } else if (error.category() ==
                 http::make_error_code(http::error::bad_version).category() &&
             error != http::error::end_of_stream &&
             error != http::error::partial_message) {
    Refuse({400, "INVALID_ARGUMENT", "no request of HTTP/1.1"});
  } else {
    Close();
  }
}

void Connection::Linger() {
  if (closed_) return;
  if (draining_) {
    Close();
    return;
  }
  lingering_ = true;
  Error ignored;
  // Also with TLS, because the end of an answer is marked by its length or its
  // last chunk.
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  Arm(kLinger);
  // A read that was started to detect a disconnect continues as the first read
  // of Discard().
  if (!filling_) Discard();
}

// Reads and drops bytes. If they stayed unread, closing the socket would send a
// reset, which can discard the answer before the client reads it.
void Connection::Discard() {
  buffer_.clear();
  stream_.async_read_some(
      buffer_.prepare(kReadAhead),
      [self = shared_from_this()](Error error, size_t bytes) {
        self->discarded_ += bytes;
        if (error || self->discarded_ > kMostDiscarded) {
          self->Close();
        } else {
          self->Discard();
        }
      });
}

void Connection::Close() {
  if (std::exchange(closed_, true)) return;
  timer_.cancel();
  ++armed_;
  Error ignored;
  stream_.socket().close(ignored);
  if (reply_ != nullptr) reply_->Gone();
}

void Connection::Arm(absl::Duration timeout) {
  timer_.expires_after(absl::ToChronoNanoseconds(timeout));
  timer_.async_wait([self = shared_from_this(), armed = ++armed_](Error error) {
    // An expiry may already be queued when the timer is cancelled or set again;
    // its number is then outdated.
    if (!error && armed == self->armed_) self->Close();
  });
}

}  // namespace rankprobe
