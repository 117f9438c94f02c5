// SPDX-License-Identifier: Apache-2.0
// XXH3 of bytes that come in pieces. Movable; not thread-safe.
#ifndef RANKPROBE_COMMON_IO_CONTENT_HASH_H_
#define RANKPROBE_COMMON_IO_CONTENT_HASH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

struct XXH3_state_s;

namespace rankprobe {

struct Xxh3StateFree {
  void operator()(XXH3_state_s* state) const;
};

// XXH3-128, which identifies a payload.
class PayloadHash {
 public:
  PayloadHash();
  void Add(absl::string_view data);
  // Returns a copy that has seen the same bytes.
  PayloadHash Clone() const;
  // 16 bytes, canonical (big-endian).
  std::string Digest() const;

 private:
  std::unique_ptr<XXH3_state_s, Xxh3StateFree> state_;
};

// XXH3-64 of an exported file, as in manifest.json.
class FileHash {
 public:
  FileHash();
  void Add(absl::string_view data);
  uint64_t Digest() const;

 private:
  std::unique_ptr<XXH3_state_s, Xxh3StateFree> state_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_CONTENT_HASH_H_
