// SPDX-License-Identifier: Apache-2.0
#include "common/io/content_hash.h"

#include <xxhash.h>

namespace rankprobe {

void Xxh3StateFree::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

PayloadHash::PayloadHash() : state_(XXH3_createState()) {
  XXH3_128bits_reset(state_.get());
}

void PayloadHash::Add(absl::string_view data) {
  XXH3_128bits_update(state_.get(), data.data(), data.size());
}

PayloadHash PayloadHash::Clone() const {
  PayloadHash copy;
  XXH3_copyState(copy.state_.get(), state_.get());
  return copy;
}

std::string PayloadHash::Digest() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  return {reinterpret_cast<const char*>(canonical.digest),
          sizeof(canonical.digest)};
}

FileHash::FileHash() : state_(XXH3_createState()) {
  XXH3_64bits_reset(state_.get());
}

void FileHash::Add(absl::string_view data) {
  XXH3_64bits_update(state_.get(), data.data(), data.size());
}

uint64_t FileHash::Digest() const { return XXH3_64bits_digest(state_.get()); }

}  // namespace rankprobe
