// SPDX-License-Identifier: Apache-2.0
// Small files for the tests of the dump format and of analysis: a directory
// that is removed at the end, writing and reading, the reference data.
#ifndef RANKPROBE_DUMP_FORMAT_TESTING_TESTING_FILES_H_
#define RANKPROBE_DUMP_FORMAT_TESTING_TESTING_FILES_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/testing/source_tree.h"

namespace rankprobe::testing {

class TempDir {
 public:
  TempDir() {
    std::string name = ::testing::TempDir() + "rankprobe_analysis_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  // Writes a file, and creates its parent directories.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

 private:
  std::string path_;
};

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// tests/golden/dumps/{name}/step0/{its only directory}
inline std::string GoldenDump(const std::string& name) {
  const std::string step = GoldenDir() + "/dumps/" + name + "/step0";
  for (const auto& entry : std::filesystem::directory_iterator(step)) {
    return entry.path();
  }
  ADD_FAILURE() << step << " is empty";
  return "";
}

inline std::string AnalysisGolden(const std::string& name) {
  return GoldenDir() + "/analysis/" + name;
}

}  // namespace rankprobe::testing

#endif  // RANKPROBE_DUMP_FORMAT_TESTING_TESTING_FILES_H_
