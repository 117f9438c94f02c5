// SPDX-License-Identifier: Apache-2.0
// A limit that the kernel enforces on what a connected TCP peer may send:
// segments beyond it are dropped before they are acknowledged, so they reach no
// reader and the sender waits. It holds however late this process is scheduled,
// which a check of a counter of received bytes does not.
//
// Threads: one at a time. The descriptor is the caller's. Failure: if the
// kernel does not know the first sequence number (SYN cookies, an old kernel),
// there is no limit, and Set returns false.
#ifndef RANKPROBE_COLLECTOR_SERVER_RECEIVE_BOUND_H_
#define RANKPROBE_COLLECTOR_SERVER_RECEIVE_BOUND_H_

#include <cstdint>
#include <optional>

namespace rankprobe {

// Called before listen(): connections accepted from `listener` can be limited.
void PrepareReceiveBounds(int listener);

class ReceiveBound {
 public:
  ReceiveBound() = default;
  // For a connection just accepted; the kernel reports only once where it
  // began.
  explicit ReceiveBound(int fd);

  // Lets none of the connection's bytes beyond the first `bytes` arrive; a
  // segment that begins before is accepted completely, so up to 64 KiB more
  // may. `bytes` is at most 1 GiB more than have been received. Returns false
  // if there can be no limit.
  bool Set(int fd, uint64_t bytes);
  // Removes the limit. The peer's TCP sends dropped data again after its
  // retransmission time.
  void Remove(int fd);
  bool is_set() const { return set_; }

 private:
  // The sequence number of the connection's first byte.
  std::optional<uint32_t> first_;
  bool set_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_RECEIVE_BOUND_H_
