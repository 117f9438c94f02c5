// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/disk_pressure.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

bool Holds(uint64_t percent, uint64_t from, bool held) {
  if (from == 0) return false;
  const uint64_t band = held ? std::min(DiskPressure::kBand, from - 1) : 0;
  return percent >= from - band;
}

}  // namespace

DiskPressure::DiskPressure(const Options& options, FileSystem* file_system,
                           const Clock* clock)
    : options_(options), file_system_(file_system), clock_(clock) {}

DiskPressure::Level DiskPressure::LevelOf(uint64_t percent) const {
  const Level before = level();
  if (Holds(percent, options_.full_percent,
            before == v1::DiskState::LEVEL_FULL))
    return v1::DiskState::LEVEL_FULL;
  // From full the level becomes high first.
  if (Holds(percent, options_.high_percent,
            before == v1::DiskState::LEVEL_HIGH ||
                before == v1::DiskState::LEVEL_FULL))
    return v1::DiskState::LEVEL_HIGH;
  return v1::DiskState::LEVEL_ROOM;
}

bool DiskPressure::Look() {
  const absl::StatusOr<uint64_t> free =
      file_system_->FreeBytes(options_.directory);
  const absl::StatusOr<uint64_t> all =
      file_system_->CapacityBytes(options_.directory);
  if (!free.ok() || !all.ok()) return false;
  const uint64_t used = *all - std::min(*all, *free);
  const uint64_t left = *free - std::min(*free, options_.min_free_bytes);
  // If no space is usable at all, the disk counts as full.
  const uint64_t percent =
      used + left == 0
          ? 100
          : static_cast<uint64_t>(static_cast<double>(used) * 100 /
                                  static_cast<double>(used + left));
  percent_ = percent;
  const Level before = level(), now = LevelOf(percent);
  if (now == before) return false;
  const int64_t now_ns = clock_->MonotonicNanos();
  if (before == v1::DiskState::LEVEL_ROOM) {
    since_ns_ = now_ns;
    refused_before_ = refused_;
  }
  lasted_ = absl::Nanoseconds(now_ns - since_ns_);
  level_ = now;
  return true;
}

v1::PayloadCredit DiskPressure::credit() const {
  switch (level()) {
    case v1::DiskState::LEVEL_HIGH:
      return v1::PAYLOAD_CREDIT_NOT_NOW;
    case v1::DiskState::LEVEL_FULL:
      return v1::PAYLOAD_CREDIT_NONE;
    default:
      return v1::PAYLOAD_CREDIT_TAKEN;
  }
}

void DiskPressure::CountRefused(uint64_t payload_bytes) {
  ++refused_;
  refused_bytes_ += payload_bytes;
}

v1::DiskState DiskPressure::State() const {
  v1::DiskState state;
  state.set_level(level());
  state.set_used_percent(static_cast<uint32_t>(percent_));
  state.set_high_percent(static_cast<uint32_t>(options_.high_percent));
  state.set_full_percent(static_cast<uint32_t>(options_.full_percent));
  state.set_refused_payloads(refused_);
  state.set_refused_payload_bytes(refused_bytes_);
  return state;
}

DiskPressure::Change DiskPressure::LastChange() const {
  Change change;
  change.what = absl::StrCat("the collector's disk is ", percent_.load(),
                             " % full (", options_.directory, ")");
  switch (level()) {
    case v1::DiskState::LEVEL_FULL:
      change.outcome =
          "records alone are taken, payloads are refused and counted";
      break;
    case v1::DiskState::LEVEL_HIGH:
      change.outcome =
          "records are taken, payloads are not: ranks wait or leave them out, "
          "by their policy, and they are counted";
      break;
    default:
      change.outcome = absl::StrCat(
          "payloads are taken again; in ",
          absl::FormatDuration(absl::Floor(lasted_, absl::Seconds(1))), " ",
          refused_ - refused_before_, " were refused");
  }
  return change;
}

}  // namespace rankprobe
