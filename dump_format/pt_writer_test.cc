// SPDX-License-Identifier: Apache-2.0
#include "dump_format/pt_writer.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collector/testing/frames.h"
#include "common/tensor/dtype.h"
#include "common/testing/source_tree.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

// Runs check_pt.py with Debian's PyTorch; empty when there is none.
std::string CheckPt(const std::string& files) {
  const std::string command =
      absl::StrCat("/usr/bin/python3 ", testing::SourceTree(),
                   "/tests/python/check_pt.py", " ", files, " 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe))
    out.append(buffer.data(), n);
  const int rc = pclose(pipe);
  if (out.find("No module named 'torch'") != std::string::npos) return "";
  EXPECT_EQ(rc, 0) << out;
  return out;
}

class PtWriterTest : public testing::TempDirTest {
 protected:
  std::string Write(const std::string& name, v1::DType dtype,
                    const std::vector<int64_t>& shape,
                    const std::string& data) {
    PtWriter writer(name, dtype, shape, data.size());
    // In two pieces, as it comes from the store.
    writer.AddData(data.substr(0, data.size() / 2));
    writer.AddData(data.substr(data.size() / 2));
    const std::string file =
        absl::StrCat(writer.prefix(), data, writer.Suffix());
    EXPECT_EQ(file.size(), writer.FileBytes());
    EXPECT_EQ(writer.prefix().size() % 64, 0u) << "the bytes are aligned";
    const std::string path = absl::StrCat(root_, "/", name, ".pt");
    std::ofstream(path, std::ios::binary) << file;
    return path;
  }
};

TEST_F(PtWriterTest, PyTorchOpensEveryTypeAndShape) {
  std::vector<std::string> paths, expected;
  std::string data(24 * 16, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i % 2);
  int number = 0;
  for (int i = v1::DType_MIN + 1; i <= v1::DType_MAX; ++i) {
    const v1::DType dtype = static_cast<v1::DType>(i);
    // Debian's PyTorch has no types without a legacy storage.
    if (TorchStorageClass(dtype).empty()) continue;
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{},
                                              {2, 3, 4},
                                              {0},
                                              {24},
                                              {1, 1, 1, 1, 24},
                                              {3, 0, 70000}}) {
      uint64_t bytes = ElementSize(dtype);
      for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
      const std::string name = absl::StrCat("t", number++);
      paths.push_back(Write(name, dtype, shape, data.substr(0, bytes)));
      expected.push_back(absl::StrCat(
          name, ".pt ", std::string(TorchDtypeName(dtype)), " [",
          absl::StrJoin(shape, ", "), "] ",
          absl::BytesToHexString(data.substr(0, std::min<uint64_t>(bytes, 64))),
          " ", bytes));
    }
  }
  const std::string out = CheckPt(absl::StrJoin(paths, " "));
  if (out.empty()) GTEST_SKIP() << "no PyTorch for /usr/bin/python3";
  EXPECT_EQ(out, absl::StrJoin(expected, "\n") + "\n");
}

// The 64-bit sizes of a file beyond 4 GiB, without writing it.
TEST_F(PtWriterTest, HugeTensorsGetWideSizes) {
  const uint64_t bytes = uint64_t{5} << 30;
  PtWriter writer("huge", v1::DTYPE_UINT8, {static_cast<int64_t>(bytes)},
                  bytes);
  const std::string suffix = writer.Suffix();
  EXPECT_NE(suffix.find("PK\x06\x06"), std::string::npos);
  EXPECT_NE(suffix.find("PK\x06\x07"), std::string::npos);
  EXPECT_EQ(writer.FileBytes(), writer.prefix().size() + bytes + suffix.size());
}

}  // namespace
}  // namespace rankprobe
