// SPDX-License-Identifier: Apache-2.0
// A bound that the kernel keeps on what a connected TCP peer may send: segments
// beyond it are dropped before they are acknowledged, so they reach no reader
// and the sender waits. It holds however late this process gets to run, which a
// look at a counter of received bytes does not.
//
// Threads: one at a time. The descriptor is the caller's. Failure: where the kernel cannot tell where
// the connection began (SYN cookies, an old kernel), there is no bound, and the
// caller is told.
#ifndef RANKPROBE_COLLECTOR_SERVER_RECEIVE_BOUND_H_
#define RANKPROBE_COLLECTOR_SERVER_RECEIVE_BOUND_H_

#include <cstdint>
#include <optional>

namespace rankprobe {

// Before listen(): connections accepted from `listener` can be bounded.
void PrepareReceiveBounds(int listener);

class ReceiveBound {
 public:
  ReceiveBound() = default;
  // Of a connection just accepted; the kernel tells once where it began.
  explicit ReceiveBound(int fd);

  // Of the bytes of the connection, counted from its first, none beyond the
  // first `bytes` arrives; a segment that begins before is taken whole, so up
  // to 64 KiB more may. `bytes` is at most 1 GiB more than have been received.
  // False when there can be no bound.
  bool Set(int fd, uint64_t bytes);
  // What was dropped is sent again by the peer's TCP, after its retransmission
  // time.
  void Remove(int fd);
  bool is_set() const { return set_; }

 private:
  // The sequence number of the connection's first byte.
  std::optional<uint32_t> first_;
  bool set_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_RECEIVE_BOUND_H_
