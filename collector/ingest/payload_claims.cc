#include "collector/ingest/payload_claims.h"

#include <algorithm>

namespace rankprobe {

bool PayloadClaims::DropFirst(const Key& key, Line* line, int64_t now_ns) {
  const uint64_t first = line->uploads.front();
  ++broken_[first];
  of_upload_[first].erase(key);
  line->uploads.erase(line->uploads.begin());
  line->since_ns = now_ns;
  return !line->uploads.empty();
}

bool PayloadClaims::Claim(const std::string& run, absl::string_view digest,
                          uint64_t length_bytes, uint64_t upload,
                          int64_t now_ns) {
  const auto broken = broken_.find(upload);
  if (broken != broken_.end() && broken->second >= kMaxBroken) return true;
  std::set<Key>& own = of_upload_[upload];
  if (own.size() >= kMaxPerUpload) return true;
  const Key key(run, std::string(digest), length_bytes);
  Line& line = claims_[key];
  if (line.uploads.empty()) line.since_ns = now_ns;
  if (std::find(line.uploads.begin(), line.uploads.end(), upload) ==
      line.uploads.end()) {
    line.uploads.push_back(upload);
    if (line.uploads.size() == 2)
      awaited_.emplace_back(line.since_ns + kPatienceNs, key);
  }
  own.insert(key);
  // Nobody waited for it until now.
  if (line.uploads.size() == 2 && line.uploads.front() != upload &&
      now_ns - line.since_ns >= kPatienceNs)
    DropFirst(key, &line, now_ns);
  return line.uploads.front() == upload;
}

void PayloadClaims::Progress(const std::string& run, absl::string_view digest,
                             uint64_t length_bytes, int64_t now_ns) {
  const auto it = claims_.find(Key(run, std::string(digest), length_bytes));
  if (it != claims_.end()) it->second.since_ns = now_ns;
}

std::vector<uint64_t> PayloadClaims::Whole(const std::string& run,
                                           absl::string_view digest,
                                           uint64_t length_bytes) {
  const auto it = claims_.find(Key(run, std::string(digest), length_bytes));
  if (it == claims_.end()) return {};
  const std::vector<uint64_t>& line = it->second.uploads;
  for (const uint64_t upload : line) of_upload_[upload].erase(it->first);
  broken_.erase(line.front());
  std::vector<uint64_t> waited(line.begin() + 1, line.end());
  claims_.erase(it);
  return waited;
}

std::vector<PayloadClaims::Heir> PayloadClaims::HandOn(int64_t now_ns) {
  std::vector<Heir> heirs;
  while (!awaited_.empty() && awaited_.front().first <= now_ns) {
    const Key key = std::move(awaited_.front().second);
    awaited_.pop_front();
    const auto it = claims_.find(key);
    if (it == claims_.end() || it->second.uploads.size() < 2) continue;
    Line& line = it->second;
    if (now_ns - line.since_ns >= kPatienceNs &&
        DropFirst(key, &line, now_ns)) {
      heirs.push_back({line.uploads.front(), std::get<1>(key)});
    }
    if (line.uploads.size() > 1)
      awaited_.emplace_back(line.since_ns + kPatienceNs, key);
  }
  return heirs;
}

std::vector<PayloadClaims::Heir> PayloadClaims::Gone(uint64_t upload,
                                                     int64_t now_ns) {
  std::vector<Heir> heirs;
  broken_.erase(upload);
  const auto own = of_upload_.find(upload);
  if (own == of_upload_.end()) return heirs;
  for (const Key& key : own->second) {
    const auto it = claims_.find(key);
    if (it == claims_.end()) continue;
    std::vector<uint64_t>& line = it->second.uploads;
    const bool first = line.front() == upload;
    line.erase(std::remove(line.begin(), line.end(), upload), line.end());
    if (line.empty()) {
      claims_.erase(it);
    } else if (first) {
      it->second.since_ns = now_ns;
      heirs.push_back({line.front(), std::get<1>(key)});
    }
  }
  of_upload_.erase(own);
  return heirs;
}

}  // namespace rankprobe
