// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/payload_leases.h"

#include <algorithm>

namespace rankprobe {

bool PayloadLeases::DropFirst(const Key& key, Line* line, int64_t now_ns) {
  const uint64_t first = line->uploads.front();
  ++broken_[first];
  of_upload_[first].erase(key);
  line->uploads.erase(line->uploads.begin());
  line->since_ns = now_ns;
  return !line->uploads.empty();
}

bool PayloadLeases::Claim(const std::string& run, absl::string_view digest,
                          uint64_t length_bytes, uint64_t upload,
                          int64_t now_ns) {
  const auto broken = broken_.find(upload);
  if (broken != broken_.end() && broken->second >= kMaxBroken) return true;
  std::set<Key>& own = of_upload_[upload];
  if (own.size() >= kMaxPerUpload) return true;
  const Key key(run, std::string(digest), length_bytes);
  Line& line = leases_[key];
  if (line.uploads.empty()) line.since_ns = now_ns;
  if (std::find(line.uploads.begin(), line.uploads.end(), upload) ==
      line.uploads.end()) {
    line.uploads.push_back(upload);
    if (line.uploads.size() == 2)
      awaited_.emplace_back(line.since_ns + kPatienceNs, key);
  }
  own.insert(key);
  // No other upload waited until now, so the patience was not checked.
  if (line.uploads.size() == 2 && line.uploads.front() != upload &&
      now_ns - line.since_ns >= kPatienceNs)
    DropFirst(key, &line, now_ns);
  return line.uploads.front() == upload;
}

void PayloadLeases::Progress(const std::string& run, absl::string_view digest,
                             uint64_t length_bytes, int64_t now_ns) {
  const auto it = leases_.find(Key(run, std::string(digest), length_bytes));
  if (it != leases_.end()) it->second.since_ns = now_ns;
}

std::vector<uint64_t> PayloadLeases::OnComplete(const std::string& run,
                                                absl::string_view digest,
                                                uint64_t length_bytes) {
  const auto it = leases_.find(Key(run, std::string(digest), length_bytes));
  if (it == leases_.end()) return {};
  const std::vector<uint64_t>& line = it->second.uploads;
  for (const uint64_t upload : line) of_upload_[upload].erase(it->first);
  broken_.erase(line.front());
  std::vector<uint64_t> waited(line.begin() + 1, line.end());
  leases_.erase(it);
  return waited;
}

std::vector<PayloadLeases::Reassignment> PayloadLeases::HandOn(int64_t now_ns) {
  std::vector<Reassignment> reassigned;
  while (!awaited_.empty() && awaited_.front().first <= now_ns) {
    const Key key = std::move(awaited_.front().second);
    awaited_.pop_front();
    const auto it = leases_.find(key);
    if (it == leases_.end() || it->second.uploads.size() < 2) continue;
    Line& line = it->second;
    if (now_ns - line.since_ns >= kPatienceNs &&
        DropFirst(key, &line, now_ns)) {
      reassigned.push_back({line.uploads.front(), std::get<1>(key)});
    }
    if (line.uploads.size() > 1)
      awaited_.emplace_back(line.since_ns + kPatienceNs, key);
  }
  return reassigned;
}

std::vector<PayloadLeases::Reassignment> PayloadLeases::ReleaseAll(
    uint64_t upload, int64_t now_ns) {
  std::vector<Reassignment> reassigned;
  broken_.erase(upload);
  const auto own = of_upload_.find(upload);
  if (own == of_upload_.end()) return reassigned;
  for (const Key& key : own->second) {
    const auto it = leases_.find(key);
    if (it == leases_.end()) continue;
    std::vector<uint64_t>& line = it->second.uploads;
    const bool first = line.front() == upload;
    line.erase(std::remove(line.begin(), line.end(), upload), line.end());
    if (line.empty()) {
      leases_.erase(it);
    } else if (first) {
      it->second.since_ns = now_ns;
      reassigned.push_back({line.front(), std::get<1>(key)});
    }
  }
  of_upload_.erase(own);
  return reassigned;
}

}  // namespace rankprobe
