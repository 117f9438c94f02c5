// SPDX-License-Identifier: Apache-2.0
// The byte stream of a connection: a socket, in plain text or with TLS. Used on
// one strand, like the socket.
#ifndef RANKPROBE_WEB_HTTP_PEER_STREAM_H_
#define RANKPROBE_WEB_HTTP_PEER_STREAM_H_

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <optional>
#include <utility>

namespace rankprobe {

class PeerStream {
 public:
  using executor_type = boost::asio::ip::tcp::socket::executor_type;

  // `tls` is null for plain text; otherwise it outlives the stream.
  PeerStream(boost::asio::ip::tcp::socket socket,
             boost::asio::ssl::context* tls)
      : socket_(std::move(socket)) {
    if (tls != nullptr) tls_.emplace(socket_, *tls);
  }
  PeerStream(const PeerStream&) = delete;
  PeerStream& operator=(const PeerStream&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return socket_; }
  bool is_tls() const { return tls_.has_value(); }

  // Required by Asio and Beast.
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }
  // Requires a stream with TLS.
  template <typename Handler>
  void async_handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server,
                          std::forward<Handler>(handler));
  }

 private:
  boost::asio::ip::tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_PEER_STREAM_H_
