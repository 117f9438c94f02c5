// SPDX-License-Identifier: Apache-2.0
// Golden dumps that are kept as their differences to another one: {file}.diff, which
// `diff -n` wrote, and `base`, which names the other one. For tests.
#ifndef RANKPROBE_COMMON_TESTING_GOLDEN_EDITS_H_
#define RANKPROBE_COMMON_TESTING_GOLDEN_EDITS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/testing/source_tree.h"

namespace rankprobe::testing {

// `text` with the edits, of which each names one of its lines.
inline std::string ApplyEdits(const std::string& text,
                              const std::string& edits) {
  std::istringstream from(text), commands(edits);
  std::string out, line;
  size_t at = 0;
  const auto copy_to = [&](size_t last) {
    for (; at < last && std::getline(from, line); ++at) out += line + '\n';
  };
  char what = 0;
  for (size_t first = 0, count = 0; commands >> what >> first >> count;) {
    std::getline(commands, line);
    copy_to(what == 'd' ? first - 1 : first);
    for (; count > 0; --count) {
      std::getline(what == 'd' ? from : commands, line);
      if (what == 'd') {
        ++at;
      } else {
        out += line + '\n';
      }
    }
  }
  copy_to(std::string::npos);
  // The last line of the dumps has no end.
  if (!text.empty() && text.back() != '\n') out.pop_back();
  return out;
}

inline std::string GoldenFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The dump in this directory of tests/golden; one that is kept as differences is
// made in `scratch`, which is not there yet.
inline std::string WholeDump(const std::string& directory,
                             const std::string& scratch) {
  if (!std::filesystem::exists(directory + "/base")) return directory;
  std::string base = GoldenFile(directory + "/base");
  base.pop_back();
  std::filesystem::create_directory(scratch);
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".diff") continue;
    const std::string name = entry.path().stem();
    std::ofstream(scratch + "/" + name, std::ios::binary)
        << ApplyEdits(GoldenFile(GoldenDir() + "/dumps/" + base + "/" + name),
                      GoldenFile(entry.path()));
  }
  return scratch;
}

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COMMON_TESTING_GOLDEN_EDITS_H_
