// SPDX-License-Identifier: Apache-2.0
// The .pt reader accepts only tensors.
#include "dump_format/pt_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "dump_format/pickle_tensor.h"
#include "dump_format/pt_writer.h"
#include "dump_format/testing/pt_files.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe {
namespace {

using testing::AnalysisGolden;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

class PtReaderTest : public ::testing::Test {
 protected:
  template <typename T>
  PtTensor Make(v1::DType dtype, const std::vector<int64_t>& shape,
                const std::vector<T>& values) {
    return files_.Make(dtype, shape, values);
  }
  std::vector<double> Values(const PtTensor& tensor) {
    std::vector<double> out(static_cast<size_t>(tensor.elements));
    EXPECT_TRUE(tensor.Read(0, absl::MakeSpan(out)).ok());
    return out;
  }
  std::string Fault(const std::string& content) {
    const std::string path = dir_.Write("bad.pt", content);
    const auto tensor = OpenPt(file_system_.get(), path);
    EXPECT_EQ(tensor.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tensor.status().message()), HasSubstr(path));
    return std::string(tensor.status().message());
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  TempDir dir_;
  rankprobe::testing::PtFiles files_;
};

TEST_F(PtReaderTest, ReadsWhatTheArchiveWrites) {
  EXPECT_THAT(Values(Make<float>(v1::DTYPE_FLOAT32, {2, 2}, {1, -2, 3.5, 0})),
              ElementsAre(1, -2, 3.5, 0));
  EXPECT_THAT(
      Values(Make<uint16_t>(v1::DTYPE_BFLOAT16, {3}, {0x3F80, 0xC000, 0x7F80})),
      ElementsAre(1, -2, INFINITY));
  EXPECT_THAT(Values(Make<uint16_t>(v1::DTYPE_FLOAT16, {4},
                                    {0x3C00, 0xC000, 0x7C00, 0x0001})),
              ElementsAre(1, -2, INFINITY, std::ldexp(1.0, -24)));
  EXPECT_THAT(Values(Make<int64_t>(v1::DTYPE_INT64, {}, {-7})),
              ElementsAre(-7));
  EXPECT_THAT(
      Values(Make<uint8_t>(v1::DTYPE_FLOAT8_E4M3FN, {3}, {0x38, 0xC0, 0x7E})),
      ElementsAre(1, -2, 448));
  EXPECT_THAT(Values(Make<float>(v1::DTYPE_COMPLEX64, {1}, {3, 4})),
              ElementsAre(5));
}

TEST_F(PtReaderTest, ReadsWhatTorchWrites) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           AnalysisGolden("dumps/mlp_tensor/dump_tensor_data"))) {
    ++files;
    const auto tensor = OpenPt(file_system_.get(), entry.path());
    EXPECT_TRUE(tensor.ok()) << tensor.status();
  }
  EXPECT_GT(files, 5);
}

TEST_F(PtReaderTest, RefusesEverythingElse) {
  // pickle.dumps of an object whose __reduce__ is os.system("..").
  const std::string bomb =
      "\x80\x02"
      "cposix\nsystem\nq\x01X\x04\x00\x00\x00trueq\x02\x85q\x03R.";
  EXPECT_THAT(std::string(ParseTensorPickle(bomb).status().message()),
              HasSubstr("posix.system"));
  EXPECT_THAT(
      std::string(ParseTensorPickle("\x80\x02]q\x01.").status().message()),
      HasSubstr("refused"));
  EXPECT_FALSE(ParseTensorPickle("").ok());
  EXPECT_FALSE(ParseTensorPickle(std::string(1 << 17, '(')).ok());
  EXPECT_THAT(Fault("not a zip"), HasSubstr("no zip directory"));
  EXPECT_THAT(Fault(""), HasSubstr("no zip directory"));
}

TEST_F(PtReaderTest, TruncatedAndLyingFiles) {
  const std::vector<float> values(100, 1.0F);
  std::string bytes(400, '\0');
  std::memcpy(bytes.data(), values.data(), 400);
  const std::vector<int64_t> shape = {100};
  PtWriter writer("x", v1::DTYPE_FLOAT32, shape, 400);
  writer.AddData(bytes);
  const std::string whole = writer.prefix() + bytes + writer.Suffix();
  for (size_t length = 0; length < whole.size(); length += 37) {
    const std::string path = dir_.Write("cut.pt", whole.substr(0, length));
    EXPECT_FALSE(OpenPt(file_system_.get(), path).ok()) << length;
  }
  // Announces 200 elements, holds 100.
  const std::vector<int64_t> long_shape = {200};
  PtWriter liar("x", v1::DTYPE_FLOAT32, long_shape, 400);
  liar.AddData(bytes);
  EXPECT_THAT(Fault(liar.prefix() + bytes + liar.Suffix()),
              HasSubstr("outside its storage"));
  // A file with any single changed byte is either read or refused.
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x41);
    const std::string path = dir_.Write("changed.pt", changed);
    const auto tensor = OpenPt(file_system_.get(), path);
    if (tensor.ok() && tensor->elements < 1000) (void)Values(*tensor);
  }
}

}  // namespace
}  // namespace rankprobe
