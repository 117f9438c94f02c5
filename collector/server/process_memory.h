// SPDX-License-Identifier: Apache-2.0
// This process' heap settings and usage.
#ifndef RANKPROBE_COLLECTOR_SERVER_PROCESS_MEMORY_H_
#define RANKPROBE_COLLECTOR_SERVER_PROCESS_MEMORY_H_

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

namespace rankprobe {

// Keeps freed memory, because frames of up to 1 MiB are allocated and freed all
// the time and would be faulted in again. Called once, by main, before any
// thread starts.
inline void KeepFreedMemory() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_TOP_PAD, 1 << 20);
  // Without fast bins nothing has to be merged when a frame is freed.
  ::mallopt(M_MXFAST, 0);
}

// The opposite, for a process that should be small: one heap for all threads,
// and free memory at its end is returned at once. Called before any thread
// starts, too.
inline void GiveMemoryBackSoon() {
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  ::mallopt(M_TOP_PAD, 64 << 10);
}

// Returns resident memory without file pages; 0 if the kernel does not report
// it.
inline uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return (resident - std::min(resident, shared)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Returns the allocated bytes. Walks every arena: not for hot paths.
inline uint64_t HeapInUse() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

inline void GiveFreedMemoryBack() { ::malloc_trim(0); }

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_PROCESS_MEMORY_H_
