// How this process uses the heap. Called once, by main, before any thread.
#ifndef RANKPROBE_COLLECTOR_PROCESS_MEMORY_H_
#define RANKPROBE_COLLECTOR_PROCESS_MEMORY_H_

#include <malloc.h>

namespace rankprobe {

// Frames of up to 1 MiB come and go all the time: memory that was touched once
// is kept instead of being given back and faulted in again.
inline void KeepFreedMemory() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_TOP_PAD, 1 << 20);
  // Without fast bins nothing has to be merged when a frame is freed.
  ::mallopt(M_MXFAST, 0);
}

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_PROCESS_MEMORY_H_
