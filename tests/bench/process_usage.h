// SPDX-License-Identifier: Apache-2.0
// Resource usage of another process of this machine, from /proc. Any thread.
// Failure: 0 of what is not there.
#ifndef RANKPROBE_TESTS_BENCH_PROCESS_USAGE_H_
#define RANKPROBE_TESTS_BENCH_PROCESS_USAGE_H_

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {

inline double CpuSeconds(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  uint64_t ticks = 0, value = 0;
  // utime and stime are the 14th and 15th, the name is the second.
  for (int i = 3; fields >> field; ++i) {
    if ((i == 14 || i == 15) && absl::SimpleAtoi(field, &value)) ticks += value;
  }
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// `key`: VmRSS, VmHWM.
inline double MemoryMib(int pid, const std::string& key) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string name; file >> name;) {
    double kib = 0;
    if (name == key + ":" && file >> kib) return kib / 1024;
    std::getline(file, name);
  }
  return 0;
}

}  // namespace rankprobe

#endif  // RANKPROBE_TESTS_BENCH_PROCESS_USAGE_H_
