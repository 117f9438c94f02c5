// SPDX-License-Identifier: Apache-2.0
// A temporary directory for one test or benchmark, removed with the object.
#ifndef RANKPROBE_COMMON_TESTING_SCRATCH_DIRECTORY_H_
#define RANKPROBE_COMMON_TESTING_SCRATCH_DIRECTORY_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "gtest/gtest.h"

namespace rankprobe::testing {

class ScratchDirectory {
 public:
  ScratchDirectory()
      : ScratchDirectory(::testing::TempDir() + "rankprobeXXXXXX") {}
  // `pattern` as for mkdtemp.
  explicit ScratchDirectory(std::string pattern) : path_(std::move(pattern)) {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COMMON_TESTING_SCRATCH_DIRECTORY_H_
