// SPDX-License-Identifier: Apache-2.0
// The checkout that a test program was built from. The path is found when the
// program runs and is not compiled in, because ccache would otherwise miss in
// each new clone.
#ifndef RANKPROBE_COMMON_TESTING_SOURCE_TREE_H_
#define RANKPROBE_COMMON_TESTING_SOURCE_TREE_H_

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace rankprobe::testing {

// The nearest directory above the program that holds tests/golden. Ends the
// program with an explanation if there is none.
inline std::string SourceTree() {
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe");
  for (std::filesystem::path directory = program.parent_path();
       directory.has_relative_path(); directory = directory.parent_path()) {
    if (std::filesystem::is_directory(directory / "tests" / "golden")) {
      return directory;
    }
  }
  std::fprintf(stderr,
               "%s: no directory above this program holds tests/golden; build "
               "inside the checkout (build/release, say)\n",
               program.c_str());
  std::abort();
}

inline std::string GoldenDir() { return SourceTree() + "/tests/golden"; }

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COMMON_TESTING_SOURCE_TREE_H_
