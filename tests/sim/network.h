// SPDX-License-Identifier: Apache-2.0
// gRPC's streams without gRPC's transport: binds a client's reactor to a
// server's, and carries the bytes of their messages in virtual time, late, cut
// or stalled as the seed says. What the reactors see is what gRPC promises them:
// messages in order, one read and one write at a time, OnDone last, no callback
// inside a call of theirs.
//
// Ownership: the world's; reactors are their owners', as with gRPC. Not
// thread-safe.
#ifndef RANKPROBE_TESTS_SIM_NETWORK_H_
#define RANKPROBE_TESTS_SIM_NETWORK_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/checked_types.h"
#include "tests/sim/scheduler.h"

namespace rankprobe::sim {

inline std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  buffer.Dump(&slices).ok();
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}
inline void FromBytes(const std::string& bytes, grpc::ByteBuffer* buffer) {
  const grpc::Slice slice(bytes);
  *buffer = grpc::ByteBuffer(&slice, 1);
}
// As gRPC does it, with the checksum of those that have one.
template <typename Message>
std::string BytesOf(const Message& message) {
  grpc::ByteBuffer buffer;
  bool own = false;
  grpc::SerializationTraits<Message>::Serialize(message, &buffer, &own).ok();
  return BytesOf(buffer);
}
template <typename Message>
void FromBytes(const std::string& bytes, Message* message) {
  grpc::ByteBuffer buffer;
  FromBytes(bytes, &buffer);
  grpc::SerializationTraits<Message>::Deserialize(&buffer, message).ok();
}

// One process' connection to another: all of its streams fail together.
struct Connection {
  uint64_t number = 0;
  // Messages that would arrive before it arrive then.
  int64_t stalled_since = 0, stalled_until = 0;
  absl::Duration latency = absl::Microseconds(200);
  // Of so many of the next messages a bit flips.
  int flips = 0;
  // A bit has flipped in the tables of its headers: each call ends like this.
  std::optional<grpc::Status> damaged;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Both ends lose each other, each when it notices.
  virtual void Break(absl::Duration client, absl::Duration server) = 0;
  // The server's process is dead: what it said before still comes.
  virtual void Mute() = 0;
  virtual bool over() const = 0;
  virtual bool server_over() const = 0;
  std::shared_ptr<Connection> connection;
  // A fault of the server's that is planted: it says something else. May be null.
  std::function<void(std::string* bytes)> server_lies;
  // Another one: as soon as a message has come the server answers with this. May be
  // null; no bytes: no answer.
  std::function<std::string(const std::string& bytes)> server_hurries;
  // Processes, by the world's numbers.
  uint64_t from = 0, to = 0;
};

template <typename CReq, typename CResp, typename SReq, typename SResp>
class TypedStream final : public Stream,
                          public std::enable_shared_from_this<
                              TypedStream<CReq, CResp, SReq, SResp>> {
 public:
  using ClientReactor = grpc::ClientBidiReactor<CReq, CResp>;
  using ServerReactor = grpc::ServerBidiReactor<SReq, SResp>;
  // Null: nobody listens any more.
  using Accept = std::function<ServerReactor*(grpc::CallbackServerContext*)>;

  TypedStream(Scheduler* scheduler, std::string name, ClientReactor* reactor,
              Accept accept)
      : scheduler_(scheduler),
        name_(std::move(name)),
        client_(this, reactor),
        server_(this),
        accept_(std::move(accept)) {
    client_.Bind();
  }

  void Mute() override { muted_ = true; }

  bool over() const override { return client_.done && server_.done; }
  bool server_over() const override {
    return server_.done || server_.bound == nullptr;
  }

  void Break(absl::Duration client, absl::Duration server) override {
    if (broken_) return;
    broken_ = true;
    scheduler_->Trace(absl::StrCat("cut ", name_));
    auto self = this->shared_from_this();
    scheduler_->At(client, [self] { self->EndClient(Gone()); });
    scheduler_->At(server, [self] { self->EndServer(); });
  }

 private:
  // What is on its way and not read; beyond it writes wait.
  static constexpr size_t kWindow = 64 << 10;

  static grpc::Status Gone() {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the connection is cut");
  }

  struct Side {
    // Arrived.
    std::deque<std::string> inbox;
    // On their way to this side, or arrived.
    size_t bytes = 0;
    // Of the last message on its way here.
    int64_t last = 0;
    bool writing = false;
    bool done = false;
    bool pumping = false;
  };

  struct Client final : Side, grpc::ClientCallbackReaderWriter<CReq, CResp> {
    Client(TypedStream* s, ClientReactor* r) : stream(s), reactor(r) {}
    void Bind() { this->BindReactor(reactor); }
    void StartCall() override {
      started = true;
      stream->Connect();
    }
    void Write(const CReq* request, grpc::WriteOptions) override {
      this->writing = true;
      stream->Send(BytesOf(*request), /*to_server=*/true);
    }
    void WritesDone() override {}
    void Read(CResp* response) override {
      read = response;
      stream->PumpClient();
    }
    void AddHold(int count) override { holds += count; }
    void RemoveHold() override {
      --holds;
      // The caller gives it up: what it cancels it says nowhere else that
      // could be heard here.
      if (!status.has_value()) stream->Cancel();
      stream->PumpClient();
    }
    TypedStream* const stream;
    ClientReactor* reactor;
    CResp* read = nullptr;
    int holds = 0;
    bool started = false;
    std::optional<grpc::Status> status;
  };

  struct Server final : Side, grpc::ServerCallbackReaderWriter<SReq, SResp> {
    explicit Server(TypedStream* s) : stream(s) {}
    void Bind(ServerReactor* r) {
      bound = r;
      this->BindReactor(r);
    }
    void Finish(grpc::Status s) override {
      finished = true;
      stream->SendStatus(std::move(s));
      stream->PumpServer();
    }
    void SendInitialMetadata() override {}
    void Read(SReq* request) override {
      read = request;
      stream->PumpServer();
    }
    void Write(const SResp* response, grpc::WriteOptions) override {
      this->writing = true;
      stream->Send(BytesOf(*response), /*to_server=*/false);
    }
    void WriteAndFinish(const SResp* response, grpc::WriteOptions options,
                        grpc::Status s) override {
      Write(response, options);
      Finish(std::move(s));
    }
    grpc::internal::ServerReactor* reactor() override { return bound; }
    void CallOnDone() override {}

    TypedStream* const stream;
    ServerReactor* bound = nullptr;
    SReq* read = nullptr;
    // The client is known to be gone, and the reactor has been told.
    bool gone = false, told = false;
    bool finished = false;
  };

  // The time at which something that is sent now arrives.
  absl::Duration Transit(Side* to) {
    int64_t at =
        scheduler_->nanos() +
        absl::ToInt64Nanoseconds(scheduler_->Between(
            this->connection->latency / 2, this->connection->latency * 2));
    at = std::max({at, to->last + 1, this->connection->stalled_until});
    to->last = at;
    return absl::Nanoseconds(at - scheduler_->nanos());
  }

  void Connect() {
    auto self = this->shared_from_this();
    scheduler_->At(Transit(&server_), [self] {
      const auto& damaged = self->connection->damaged;
      ServerReactor* const reactor = self->broken_ || damaged.has_value()
                                         ? nullptr
                                         : self->accept_(&self->context_);
      if (reactor == nullptr) {
        self->server_.done = true;
        self->EndClient(damaged.value_or(Gone()));
        return;
      }
      self->server_.Bind(reactor);
      self->PumpServer();
    });
  }

  void Send(std::string bytes, bool to_server) {
    if (!to_server && muted_) return;
    Side* const to =
        to_server ? static_cast<Side*>(&server_) : static_cast<Side*>(&client_);
    if (!to_server && this->server_lies) this->server_lies(&bytes);
    to->bytes += bytes.size();
    if (this->connection->flips > 0 && !bytes.empty() &&
        scheduler_->Chance(0.5)) {
      --this->connection->flips;
      const uint64_t bit = scheduler_->Choose(bytes.size() * 8);
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      scheduler_->Trace(absl::StrCat("flip ", name_, " ", bit));
    }
    auto self = this->shared_from_this();
    scheduler_->At(Transit(to),
                   [self, to, to_server, bytes = std::move(bytes)]() mutable {
                     if (self->broken_) return;
                     to->inbox.push_back(std::move(bytes));
                     if (to_server) {
                       self->PumpServer();
                     } else {
                       self->PumpClient();
                     }
                   });
    if (to_server) {
      PumpClient();
    } else {
      PumpServer();
    }
  }

  void SendStatus(grpc::Status status) {
    if (muted_) return;
    auto self = this->shared_from_this();
    scheduler_->At(Transit(&client_), [self, status = std::move(status)] {
      if (!self->broken_) self->EndClient(status);
    });
  }

  void Cancel() {
    if (broken_) return;
    auto self = this->shared_from_this();
    EndClient(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"));
    scheduler_->At(Transit(&server_), [self] { self->EndServer(); });
  }

  void EndClient(const grpc::Status& status) {
    if (client_.status.has_value()) return;
    client_.status = status;
    PumpClient();
  }
  void EndServer() {
    server_.gone = true;
    PumpServer();
  }

  // Callbacks come from nowhere but here: never inside a call of a reactor.
  void PumpClient() {
    if (std::exchange(client_.pumping, true)) return;
    auto self = this->shared_from_this();
    scheduler_->At(absl::Microseconds(1), [self] {
      self->client_.pumping = false;
      self->DoPumpClient();
    });
  }
  void PumpServer() {
    if (std::exchange(server_.pumping, true)) return;
    auto self = this->shared_from_this();
    scheduler_->At(absl::Microseconds(1), [self] {
      self->server_.pumping = false;
      self->DoPumpServer();
    });
  }

  void DoPumpClient() {
    if (client_.done || !client_.started) return;
    ClientReactor* const reactor = client_.reactor;
    if (client_.writing &&
        (client_.status.has_value() || server_.bytes < kWindow)) {
      client_.writing = false;
      return Again(&TypedStream::PumpClient,
                   [&] { reactor->OnWriteDone(!client_.status.has_value()); });
    }
    if (client_.read != nullptr && !client_.inbox.empty()) {
      FromBytes(client_.inbox.front(), std::exchange(client_.read, nullptr));
      Took(&client_);
      PumpServer();
      return Again(&TypedStream::PumpClient,
                   [&] { reactor->OnReadDone(true); });
    }
    if (!client_.status.has_value()) return;
    if (client_.read != nullptr) {
      client_.read = nullptr;
      return Again(&TypedStream::PumpClient,
                   [&] { reactor->OnReadDone(false); });
    }
    if (client_.holds > 0 || client_.writing) return;
    client_.done = true;
    scheduler_->Trace(absl::StrCat("done ", name_, " ",
                                   client_.status->error_code(), " ",
                                   client_.status->error_message()));
    reactor->OnDone(*client_.status);
  }

  void DoPumpServer() {
    ServerReactor* const reactor = server_.bound;
    if (server_.done || reactor == nullptr) return;
    if (server_.gone && !server_.told) {
      server_.told = true;
      return Again(&TypedStream::PumpServer, [&] { reactor->OnCancel(); });
    }
    const bool ended = server_.gone || server_.finished;
    if (server_.writing && (ended || client_.bytes < kWindow)) {
      server_.writing = false;
      return Again(&TypedStream::PumpServer,
                   [&] { reactor->OnWriteDone(!ended); });
    }
    if (server_.read != nullptr && (ended || !server_.inbox.empty())) {
      SReq* const read = std::exchange(server_.read, nullptr);
      const bool ok = !ended;
      if (ok) {
        FromBytes(server_.inbox.front(), read);
        const std::string answer =
            this->server_hurries ? this->server_hurries(server_.inbox.front())
                                 : std::string();
        if (!answer.empty()) Send(answer, /*to_server=*/false);
        scheduler_->Trace(
            absl::StrCat("got ", name_, " ", server_.inbox.front().size()));
        Took(&server_);
        PumpClient();
      }
      return Again(&TypedStream::PumpServer, [&] { reactor->OnReadDone(ok); });
    }
    if (!server_.finished || server_.read != nullptr || server_.writing) return;
    server_.done = true;
    server_.bound = nullptr;
    reactor->OnDone();
  }

  static void Took(Side* side) {
    side->bytes -= side->inbox.front().size();
    side->inbox.pop_front();
  }

  // There may be more to tell once it has been told this.
  template <typename Callback>
  void Again(void (TypedStream::*pump)(), const Callback& callback) {
    (this->*pump)();
    callback();
  }

  Scheduler* const scheduler_;
  const std::string name_;
  Client client_;
  Server server_;
  const Accept accept_;
  grpc::CallbackServerContext context_;
  bool broken_ = false, muted_ = false;
};

}  // namespace rankprobe::sim

#endif  // RANKPROBE_TESTS_SIM_NETWORK_H_
