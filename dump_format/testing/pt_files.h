// SPDX-License-Identifier: Apache-2.0
// Tensors in .pt files in a temporary directory of the test. They are read from
// there as long as this object lives.
#ifndef RANKPROBE_DUMP_FORMAT_TESTING_PT_FILES_H_
#define RANKPROBE_DUMP_FORMAT_TESTING_PT_FILES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/io/file_system.h"
#include "dump_format/pt_reader.h"
#include "dump_format/pt_writer.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::testing {

class PtFiles {
 public:
  // Fails the test and returns an empty tensor if the file cannot be opened.
  template <typename T>
  PtTensor Make(v1::DType dtype, const std::vector<int64_t>& shape,
                const std::vector<T>& values) {
    std::string bytes(values.size() * sizeof(T), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    PtWriter writer("x", dtype, shape, bytes.size());
    writer.AddData(bytes);
    const std::string path =
        directory_.Write("x" + std::to_string(count_++) + ".pt",
                         writer.prefix() + bytes + writer.Suffix());
    auto tensor = OpenPt(file_system_.get(), path);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.ok() ? *std::move(tensor) : PtTensor();
  }

 private:
  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  const TempDir directory_;
  int count_ = 0;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_DUMP_FORMAT_TESTING_PT_FILES_H_
