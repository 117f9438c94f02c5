// SPDX-License-Identifier: Apache-2.0
// Fill level of the archive's disk, and what may still be written: everything,
// no new payloads, or only records.
//
// Full is where all writing stops (min_free_bytes), so that on a small disk
// payloads stop before records do. A level ends kBand percent below where it
// begins, so that an archive that frees as fast as it takes does not alternate.
//
// Ownership: one per collector; FileSystem and Clock outlive it. Threads: Look
// and LastChange from one thread, which waits for the disk; the rest from any,
// without waiting. Failure: if the disk does not answer, the level stays.
#ifndef RANKPROBE_COLLECTOR_INGEST_DISK_PRESSURE_H_
#define RANKPROBE_COLLECTOR_INGEST_DISK_PRESSURE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/control.pb.h"

namespace rankprobe {

class DiskPressure {
 public:
  using Level = v1::DiskState::Level;
  static constexpr uint64_t kBand = 5;

  struct Options {
    std::string directory;
    // Shares of the disk less min_free_bytes at which a level begins; 0: never.
    uint64_t high_percent = 0;
    uint64_t full_percent = 0;
    uint64_t min_free_bytes = 0;
  };
  DiskPressure(const Options& options, FileSystem* file_system,
               const Clock* clock);

  // Reads the disk's fill level. Returns true if the level has changed.
  bool Look();

  Level level() const { return level_.load(std::memory_order_relaxed); }
  // Returns the credit that agents get.
  v1::PayloadCredit credit() const;
  // Counts a payload that was refused.
  void CountRefused(uint64_t payload_bytes);
  v1::DiskState State() const;

  // Texts for display about the level that Look has found: the state and the
  // action.
  struct Change {
    std::string what;
    std::string outcome;
  };
  Change LastChange() const;

 private:
  Level LevelOf(uint64_t percent) const;

  const Options options_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  std::atomic<Level> level_{v1::DiskState::LEVEL_ROOM};
  std::atomic<uint64_t> percent_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> refused_bytes_{0};
  // Used by the one thread: when the level began, and what had been refused
  // before.
  int64_t since_ns_ = 0;
  uint64_t refused_before_ = 0;
  absl::Duration lasted_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_DISK_PRESSURE_H_
