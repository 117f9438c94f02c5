// SPDX-License-Identifier: Apache-2.0
// Small dumps as text, for the tests of root cause: calls of one tensor in and
// one out whose four statistics are equal.
#ifndef RANKPROBE_ANALYSIS_TESTING_DUMP_TEXT_H_
#define RANKPROBE_ANALYSIS_TESTING_DUMP_TEXT_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::testing {

inline std::string Tensor(const std::string& value) {
  return absl::StrCat(
      R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[4],"Max":)",
      value, R"(,"Min":)", value, R"(,"Mean":)", value, R"(,"Norm":)", value,
      R"(,"requires_grad":false})");
}
inline std::string Call(const std::string& name, const std::string& in,
                        const std::string& out,
                        const std::string& kwargs = "") {
  return absl::StrCat("\"", name, R"(":{"input_args":[)", Tensor(in),
                      R"(],"input_kwargs":{)", kwargs, R"(},"output":[)",
                      Tensor(out), "]}");
}
inline std::string Int(const std::string& key, int value) {
  return absl::StrCat("\"", key, R"(":{"type":"int","value":)", value, "}");
}

// A directory of ranks' dumps that is deleted at the end.
class DumpDir {
 public:
  void Write(const std::string& place,
             const std::vector<std::string>& calls) const {
    dir_.Write(place + "/dump.json",
               absl::StrCat(R"({"task":"statistics","data":{)",
                            absl::StrJoin(calls, ","), "}}"));
  }
  void WriteFile(const std::string& name, const std::string& text) const {
    dir_.Write(name, text);
  }
  const std::string& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_ANALYSIS_TESTING_DUMP_TEXT_H_
