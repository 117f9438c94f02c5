// SPDX-License-Identifier: Apache-2.0
// Socket on which a process proves that it is on the collector's host and
// passes the memory of its payloads: over a Unix socket in the abstract
// namespace, whose name the collector gives in its Welcome. Such a socket
// leaves no file when its process is killed, and is not visible from another
// network namespace.
//
//   agent -> collector  one packet: the session's id, with one descriptor
//   collector -> agent  one packet: "taken", or why not; then the end
//
// Both sides ask the kernel for the other's user; it must be their own.
// Thread-safe: pure functions.
#ifndef RANKPROBE_COMMON_RPC_LANE_SOCKET_H_
#define RANKPROBE_COMMON_RPC_LANE_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rankprobe {

inline constexpr char kLaneTaken[] = "taken";
inline constexpr size_t kMaxLaneSessionBytes = 64;
inline constexpr size_t kMaxLaneAnswerBytes = 256;

// A new unused name, and a check of its form: an agent connects to no other
// socket of its host, whatever a collector sends.
std::string NewLaneName();
bool IsLaneName(absl::string_view untrusted);

// A socket that listens there, not blocking. UNAVAILABLE.
absl::StatusOr<int> ListenLane(absl::string_view name);

// The other side of a connected socket is of this process' user.
bool IsOwnUser(int socket);

// Passes a duplicate of `fd`. UNAVAILABLE if no process listens: the collector
// is on another host or in another container; PERMISSION_DENIED when it is
// another user's, or refuses.
absl::Status HandOver(absl::string_view untrusted_name,
                      absl::string_view session, int fd,
                      absl::Duration timeout);

// What one packet of a connected socket holds: INVALID_ARGUMENT unless it is a session's
// id with exactly one descriptor, the caller's. UNAVAILABLE: none has come yet.
struct HandedOver {
  std::string session;
  int fd = -1;
};
absl::StatusOr<HandedOver> ReceiveHandedOver(int socket);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_LANE_SOCKET_H_
