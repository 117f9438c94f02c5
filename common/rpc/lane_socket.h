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

// Create a new unused name, and check the form of one: an agent connects to no
// other socket of its host, whatever a collector sends.
std::string NewLaneName();
bool IsLaneName(absl::string_view untrusted);

// Returns a non-blocking socket that listens on the name. UNAVAILABLE on
// failure.
absl::StatusOr<int> ListenLane(absl::string_view name);

// Whether the other side of a connected socket belongs to this process' user.
bool IsOwnUser(int socket);

// Passes a duplicate of `fd`. UNAVAILABLE if no process listens: the collector
// is on another host or in another container. PERMISSION_DENIED if the socket
// is another user's, or the collector refuses.
absl::Status HandOver(absl::string_view untrusted_name,
                      absl::string_view session, int fd,
                      absl::Duration timeout);

// One packet of a connected socket: a session's id with exactly one descriptor,
// which the caller owns. INVALID_ARGUMENT for any other packet, UNAVAILABLE if
// none has arrived yet.
struct HandedOver {
  std::string session;
  int fd = -1;
};
absl::StatusOr<HandedOver> ReceiveHandedOver(int socket);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_LANE_SOCKET_H_
