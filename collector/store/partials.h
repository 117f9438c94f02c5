// SPDX-License-Identifier: Apache-2.0
// Payloads that their sender has not finished: how far each has come, with the
// state of its digest.
//
// By sender, so that wrong bytes of one rank never mix with the right ones of
// another. A state that is dropped is read again from the sender's chunks
// (table q), so that their number may be bounded: those used longest ago go
// first. Threads: none of its own; the store's mutex guards it.
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

  // Null if there is none. The pointer is good until it is erased or dropped.
  Partial* Find(const std::string& key);
  // In the place of one that is there.
  Partial* Put(const std::string& key, Partial partial);
  // All whose key begins with `prefix`.
  void Erase(absl::string_view prefix);
  // Drops what is above the limit.
  void Trim();
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Partial partial;
    std::list<std::string>::iterator use;
  };

  const size_t limit_;
  std::map<std::string, Entry, std::less<>> entries_;
  // Keys, the one used longest ago first.
  std::list<std::string> uses_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_PARTIALS_H_
