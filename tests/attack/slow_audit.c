// SPDX-License-Identifier: Apache-2.0
/* LD_PRELOAD: a disk that takes SLOW_AUDIT_MS for each write to a file named audit.jsonl. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

ssize_t writev(int fd, const struct iovec *pieces, int count) {
  static ssize_t (*real)(int, const struct iovec *, int);
  if (!real) real = (ssize_t (*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  static const char name[] = "/audit.jsonl";
  const ssize_t tail = (ssize_t)sizeof name - 1;
  if (length > tail && memcmp(path + length - tail, name, (size_t)tail) == 0) {
    const long ms = atol(getenv("SLOW_AUDIT_MS"));
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
  }
  return real(fd, pieces, count);
}
