// SPDX-License-Identifier: Apache-2.0
// Payloads that their sender has not finished: the received length and the
// state of the digest.
//
// They are kept by sender, so that wrong bytes of one rank never mix with
// correct ones of another. A dropped state is read again from the sender's
// chunks (table q), so their number may be bounded: the least recently used are
// dropped first. Threads: none of its own; the store's mutex guards it.
#ifndef RANKPROBE_COLLECTOR_STORE_PARTIALS_H_
#define RANKPROBE_COLLECTOR_STORE_PARTIALS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/io/content_hash.h"

namespace rankprobe {

struct Partial {
  uint64_t next_offset = 0;
  PayloadHash hash;

  Partial Clone() const { return {next_offset, hash.Clone()}; }
};

class PartialTable {
 public:
  explicit PartialTable(size_t limit) : limit_(limit) {}

  // Returns null if there is none. The pointer is valid until the entry is
  // erased or dropped.
  Partial* Find(const std::string& key);
  // Inserts the state, or replaces an existing one.
  Partial* Put(const std::string& key, Partial partial);
  // Erases all entries whose key begins with `prefix`.
  void Erase(absl::string_view prefix);
  // Drops the least recently used entries above the limit.
  void Trim();
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Partial partial;
    std::list<std::string>::iterator use;
  };

  const size_t limit_;
  std::map<std::string, Entry, std::less<>> entries_;
  // Keys, least recently used first.
  std::list<std::string> uses_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_PARTIALS_H_
