// SPDX-License-Identifier: Apache-2.0
/* What objects compiled against Debian 12's glibc 2.36 refer to and older ones
 * lack, for the few names that occur. Linked hidden into each program and
 * extension of the wheel; where the system's glibc has the function, that is
 * called, unless what is here does as well. A name that is missing here fails
 * the link. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* glibc 2.32 tells libstdc++ that a process has one thread, to save atomic
 * operations. A trainer has many. */
char __libc_single_threaded = 0;

/* 2.30. Before, std::condition_variable waited by the wall clock as well, and so
 * does this. Of libraries only: common/base/monotonic_time.h does not need it. */
int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
  int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *) =
      dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
  if (real != NULL) return real(cond, mutex, clock, until);
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t kSecond = 1000000000;
  int64_t nanoseconds = wall.tv_nsec + until->tv_nsec - now.tv_nsec;
  wall.tv_sec += until->tv_sec - now.tv_sec;
  if (nanoseconds < 0) {
    nanoseconds += kSecond;
    --wall.tv_sec;
  } else if (nanoseconds >= kSecond) {
    nanoseconds -= kSecond;
    ++wall.tv_sec;
  }
  wall.tv_nsec = nanoseconds;
  return pthread_cond_timedwait(cond, mutex, &wall);
}

/* 2.33. The old one counts modulo 4 GiB. */
struct mallinfo2 mallinfo2(void) {
  struct mallinfo2 (*real)(void) = dlsym(RTLD_DEFAULT, "mallinfo2");
  if (real != NULL) return real();
  struct mallinfo (*old)(void) = dlsym(RTLD_DEFAULT, "mallinfo");
  struct mallinfo2 wide = {0};
  if (old == NULL) return wide;
  const struct mallinfo narrow = old();
  wide.arena = (unsigned)narrow.arena;
  wide.ordblks = (unsigned)narrow.ordblks;
  wide.smblks = (unsigned)narrow.smblks;
  wide.hblks = (unsigned)narrow.hblks;
  wide.hblkhd = (unsigned)narrow.hblkhd;
  wide.usmblks = (unsigned)narrow.usmblks;
  wide.fsmblks = (unsigned)narrow.fsmblks;
  wide.uordblks = (unsigned)narrow.uordblks;
  wide.fordblks = (unsigned)narrow.fordblks;
  wide.keepcost = (unsigned)narrow.keepcost;
  return wide;
}

/* 2.34. The old way: those that are open now, one by one. What another thread
 * opens meanwhile is for it to open with O_CLOEXEC; one that it closes meanwhile
 * is no error to posix_spawn. */
int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from) {
  int (*real)(posix_spawn_file_actions_t *, int) =
      dlsym(RTLD_DEFAULT, "posix_spawn_file_actions_addclosefrom_np");
  if (real != NULL) return real(actions, from);
  DIR *const open_ones = opendir("/proc/self/fd");
  if (open_ones == NULL) return errno;
  int error = 0;
  for (const struct dirent *entry; error == 0 && (entry = readdir(open_ones)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    const int fd = atoi(entry->d_name);
    if (fd >= from && fd != dirfd(open_ones)) error = posix_spawn_file_actions_addclose(actions, fd);
  }
  closedir(open_ones);
  return error;
}

/* 2.36. std::random_device's first choice. As random as glibc's, which asks the
 * kernel each time too. */
uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof(value)) != 0) abort();
  return value;
}

/* 2.36 too. Expat salts its hashes with it. */
void arc4random_buf(void *buffer, size_t size) {
  const size_t kMostAtOnce = 256;
  for (char *at = buffer; size > 0;) {
    const size_t piece = size < kMostAtOnce ? size : kMostAtOnce;
    if (getentropy(at, piece) != 0) abort();
    at += piece;
    size -= piece;
  }
}
