#include "collector/ingest/payload_claims.h"

#include <algorithm>

namespace rankprobe {

bool PayloadClaims::Claim(const std::string& run, absl::string_view digest,
                          uint64_t length_bytes, uint64_t upload) {
  std::set<Key>& own = of_upload_[upload];
  if (own.size() >= kMaxPerUpload) return true;
  const Key key(run, std::string(digest), length_bytes);
  std::vector<uint64_t>& line = claims_[key];
  if (std::find(line.begin(), line.end(), upload) == line.end())
    line.push_back(upload);
  own.insert(key);
  return line.front() == upload;
}

std::vector<uint64_t> PayloadClaims::Whole(const std::string& run,
                                           absl::string_view digest,
                                           uint64_t length_bytes) {
  const auto it = claims_.find(Key(run, std::string(digest), length_bytes));
  if (it == claims_.end()) return {};
  for (const uint64_t upload : it->second) of_upload_[upload].erase(it->first);
  std::vector<uint64_t> waited(it->second.begin() + 1, it->second.end());
  claims_.erase(it);
  return waited;
}

std::vector<PayloadClaims::Heir> PayloadClaims::Gone(uint64_t upload) {
  std::vector<Heir> heirs;
  const auto own = of_upload_.find(upload);
  if (own == of_upload_.end()) return heirs;
  for (const Key& key : own->second) {
    const auto it = claims_.find(key);
    if (it == claims_.end()) continue;
    std::vector<uint64_t>& line = it->second;
    const bool first = line.front() == upload;
    line.erase(std::remove(line.begin(), line.end(), upload), line.end());
    if (line.empty()) {
      claims_.erase(it);
    } else if (first) {
      heirs.push_back({line.front(), std::get<1>(key)});
    }
  }
  of_upload_.erase(own);
  return heirs;
}

}  // namespace rankprobe
