// SPDX-License-Identifier: Apache-2.0
// .npy files: those that NumPy's own functions write, those written for tensors
// of MindSpore, and malicious ones.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/file_system.h"
#include "common/tensor/dtype.h"
#include "dump_format/npy_reader.h"
#include "dump_format/npy_writer.h"
#include "dump_format/pt_reader.h"
#include "dump_format/testing/testing_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NpyTest : public ::testing::Test {
 protected:
  absl::StatusOr<PtTensor> Open(const std::string& bytes) {
    return OpenPt(file_system_.get(), directory_.Write("x.npy", bytes));
  }

  // A file of numpy.save with this header.
  static std::string File(std::string header, const std::string& data) {
    header.append(117 - header.size(), ' ');
    header.push_back('\n');
    return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + data;
  }

  template <typename T>
  static std::string Bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()),
            values.size() * sizeof(T)};
  }

  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  const testing::TempDir directory_;
};

std::vector<double> ReadAll(const PtTensor& tensor) {
  std::vector<double> out(static_cast<size_t>(tensor.elements));
  EXPECT_TRUE(tensor.Read(0, absl::MakeSpan(out)).ok());
  return out;
}

TEST_F(NpyTest, ReadsWhatNumpyWrites) {
  const auto tensor =
      Open(File("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                Bytes<float>({1, 2, 3, 4, 5, 6})));
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->dtype, v1::DTYPE_FLOAT32);
  EXPECT_THAT(tensor->shape, ElementsAre(2, 3));
  EXPECT_THAT(ReadAll(*tensor), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(NpyTest, FortranOrderIsReadInRows) {
  const auto tensor =
      Open(File("{'descr': '<i8', 'fortran_order': True, 'shape': (2, 3), }",
                Bytes<int64_t>({1, 4, 2, 5, 3, 6})));
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_THAT(ReadAll(*tensor), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(NpyTest, ScalarsAndEmptyArrays) {
  const auto scalar =
      Open(File("{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
                Bytes<double>({2.5})));
  ASSERT_TRUE(scalar.ok()) << scalar.status();
  EXPECT_TRUE(scalar->shape.empty());
  EXPECT_THAT(ReadAll(*scalar), ElementsAre(2.5));
  const auto empty = Open(
      File("{'descr': '|b1', 'fortran_order': False, 'shape': (0, 3), }", ""));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->elements, 0);
}

TEST_F(NpyTest, WritesWhatItReads) {
  const std::string data = Bytes<int32_t>({1, -2, 3});
  NpyWriter writer(v1::DTYPE_INT32, {3}, data.size());
  const std::string file = writer.prefix() + std::string(writer.Encode(data));
  EXPECT_EQ(file.size(), writer.FileBytes());
  EXPECT_EQ((file.size() - data.size()) % 64, 0U);
  const auto tensor = Open(file);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->dtype, v1::DTYPE_INT32);
  EXPECT_THAT(ReadAll(*tensor), ElementsAre(1, -2, 3));
}

// NumPy has no bfloat16; msprobe writes such tensors as float32.
TEST_F(NpyTest, BfloatIsWidenedHoweverItsBytesCome) {
  const std::string data = Bytes<uint16_t>({0x3f80, 0xc000, 0x7f80});
  NpyWriter writer(v1::DTYPE_BFLOAT16, {3}, data.size());
  std::string file = writer.prefix();
  for (const char byte : data)
    absl::StrAppend(&file, writer.Encode(absl::string_view(&byte, 1)));
  EXPECT_EQ(file.size(), writer.FileBytes());
  const auto tensor = Open(file);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->dtype, v1::DTYPE_FLOAT32);
  EXPECT_THAT(ReadAll(*tensor),
              ElementsAre(1, -2, std::numeric_limits<double>::infinity()));
}

TEST_F(NpyTest, WhatHasNoNumbersIsBytes) {
  for (const v1::DType dtype : {v1::DTYPE_UNSPECIFIED, v1::DTYPE_COMPLEX32}) {
    NpyWriter writer(dtype, {1}, ElementSize(dtype));
    const std::string data(ElementSize(dtype), 'x');
    EXPECT_EQ(writer.Encode(data), data);
    EXPECT_EQ(writer.FileBytes(), writer.prefix().size() + data.size());
    EXPECT_TRUE(absl::IsUnimplemented(Open(writer.prefix() + data).status()));
  }
}

TEST_F(NpyTest, TextsAreNoTensor) {
  const auto tensor =
      Open(File("{'descr': '<U3', 'fortran_order': False, 'shape': (1,), }",
                std::string(12, 'a')));
  EXPECT_TRUE(absl::IsUnimplemented(tensor.status())) << tensor.status();
}

TEST_F(NpyTest, RefusesWhatLies) {
  const std::string good =
      File("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
           Bytes<float>({1, 2}));
  for (size_t size = 0; size < good.size(); ++size) {
    const auto tensor = Open(good.substr(0, size));
    ASSERT_TRUE(absl::IsInvalidArgument(tensor.status())) << size;
    EXPECT_THAT(std::string(tensor.status().message()), HasSubstr("x.npy"));
  }
  for (const char* shape : {"(1099511627776, 1099511627776)", "(-1,)", "(2.5,)",
                            "(99999999999999999999,)"}) {
    const auto tensor = Open(File(
        absl::StrCat(
            "{'descr': '<f4', 'fortran_order': False, 'shape': ", shape, ", }"),
        Bytes<float>({1, 2})));
    EXPECT_TRUE(absl::IsInvalidArgument(tensor.status())) << shape;
  }
}

}  // namespace
}  // namespace rankprobe
