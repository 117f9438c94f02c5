// SPDX-License-Identifier: Apache-2.0
// Fill level of the archive's disk, and what may still be written: all, no
// payloads that have not begun, or records alone.
//
// Full is where writing stops altogether (min_free_bytes), so that on a small disk
// payloads end before records do. A level is left kBand percent below where it is
// entered, so that an archive that frees as fast as it takes does not go to and fro.
//
// Ownership: one per collector; FileSystem and Clock outlive it. Threads: Look and
// LastChange from one thread, which waits for the disk; the rest from any, waiting for
// nothing. Failure: a disk that does not answer leaves the level as it is.
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
    // Of the disk less min_free_bytes, from which on a level holds; 0: never.
    uint64_t high_percent = 0;
    uint64_t full_percent = 0;
    uint64_t min_free_bytes = 0;
  };
  DiskPressure(const Options& options, FileSystem* file_system,
               const Clock* clock);

  // Asks the disk. True: the level is another than before.
  bool Look();

  Level level() const { return level_.load(std::memory_order_relaxed); }
  // What agents are told.
  v1::PayloadCredit credit() const;
  // A payload of so many bytes came and was not taken.
  void CountRefused(uint64_t payload_bytes);
  v1::DiskState State() const;

  // For a person, of the level that Look has found: what is, and what is done.
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
  // Of the one thread: when there was no room any more, and what had been refused
  // by then.
  int64_t since_ns_ = 0;
  uint64_t refused_before_ = 0;
  absl::Duration lasted_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_DISK_PRESSURE_H_
