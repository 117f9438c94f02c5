// SPDX-License-Identifier: Apache-2.0
/* LD_PRELOAD: a wall clock that jumps. The file $CLOCK_SHIFT_FILE holds seconds
 * (text) by which it is ahead; it is read again at each look at the clock.
 *
 * Waits until a point of wall time (futexes with FUTEX_CLOCK_REALTIME, as Abseil
 * makes them) end when the shifted clock gets there, as the kernel would have it
 * after settimeofday: they are cut into short ones here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int real_clock(clockid_t id, struct timespec *ts) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
  return next(id, ts);
}

static long shift(void) {
  const char *path = getenv("CLOCK_SHIFT_FILE");
  char text[32] = {0};
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  return n > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
  int rc = real_clock(id, ts);
  if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += shift();
  return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
  struct timespec ts;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &ts);
  tv->tv_sec = ts.tv_sec;
  tv->tv_usec = ts.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  if (out) *out = ts.tv_sec;
  return ts.tv_sec;
}

typedef long (*syscall_fn)(long, ...);

long syscall(long number, ...) {
  static syscall_fn next;
  if (!next) next = (syscall_fn)dlsym(RTLD_NEXT, "syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  const struct timespec *until = (const struct timespec *)a[3];
  int op = (int)a[1] & FUTEX_CMD_MASK;
  if (number != SYS_futex || op != FUTEX_WAIT_BITSET || !((int)a[1] & FUTEX_CLOCK_REALTIME) || !until)
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  for (;;) {
    struct timespec now, soon;
    clock_gettime(CLOCK_REALTIME, &now);
    double left = (double)(until->tv_sec - now.tv_sec) + (double)(until->tv_nsec - now.tv_nsec) / 1e9;
    if (left <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    if (left > 0.05) left = 0.05;
    real_clock(CLOCK_REALTIME, &soon);
    soon.tv_nsec += (long)(left * 1e9);
    if (soon.tv_nsec >= 1000000000) {
      soon.tv_nsec -= 1000000000;
      ++soon.tv_sec;
    }
    long rc = next(number, a[0], a[1], a[2], (long)&soon, a[4], a[5]);
    if (rc == 0 || errno != ETIMEDOUT) return rc;
  }
}
