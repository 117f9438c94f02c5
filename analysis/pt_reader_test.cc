// The .pt reader takes tensors and nothing else.
#include "analysis/pt_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "analysis/metrics.h"
#include "analysis/pickle_tensor.h"
#include "analysis/testing_files.h"
#include "collector/archive/pt_writer.h"

namespace rankprobe::analysis {
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
    std::string bytes(values.size() * sizeof(T), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    PtWriter writer("x", dtype, shape, bytes.size());
    writer.AddData(bytes);
    const std::string path =
        dir_.Write("x" + std::to_string(count_++) + ".pt",
                   writer.prefix() + bytes + writer.Suffix());
    auto tensor = OpenPt(file_system_.get(), path);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.ok() ? *std::move(tensor) : PtTensor();
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
  TensorMetrics Metrics(const PtTensor& n, const PtTensor& b) {
    auto metrics = CompareTensors(n, b);
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    return *metrics;
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  TempDir dir_;
  int count_ = 0;
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
  // Says 200 elements, holds 100.
  const std::vector<int64_t> long_shape = {200};
  PtWriter liar("x", v1::DTYPE_FLOAT32, long_shape, 400);
  liar.AddData(bytes);
  EXPECT_THAT(Fault(liar.prefix() + bytes + liar.Suffix()),
              HasSubstr("outside its storage"));
  // Every single changed byte is read or refused, never worse.
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x41);
    const std::string path = dir_.Write("changed.pt", changed);
    const auto tensor = OpenPt(file_system_.get(), path);
    if (tensor.ok() && tensor->elements < 1000) (void)Values(*tensor);
  }
}

TEST_F(PtReaderTest, Metrics) {
  const PtTensor b = Make<float>(v1::DTYPE_FLOAT32, {4}, {1, 2, 3, 4});
  const TensorMetrics same = Metrics(b, b);
  EXPECT_THAT(same.text, ElementsAre("1.0", "0.0", "0.0", "0.0", "1.0", "1.0"));
  const TensorMetrics off =
      Metrics(Make<float>(v1::DTYPE_FLOAT32, {4}, {1, 2, 3, 5}), b);
  EXPECT_EQ(off.text[1], "1.0");
  EXPECT_EQ(off.text[2], "1.0");
  EXPECT_EQ(off.text[3], "0.25");
  EXPECT_EQ(off.text[4], "0.75");
}

TEST_F(PtReaderTest, MetricsOfOddTensors) {
  const float nan = NAN;
  const PtTensor b = Make<float>(v1::DTYPE_FLOAT32, {3}, {1, nan, INFINITY});
  EXPECT_EQ(Metrics(b, b).text[2], "0.0");
  EXPECT_EQ(
      Metrics(Make<float>(v1::DTYPE_FLOAT32, {3}, {1, 2, INFINITY}), b).text[0],
      "N/A");
  EXPECT_EQ(
      Metrics(Make<float>(v1::DTYPE_FLOAT32, {2, 2}, {1, 2, 3, 4}), b).text[0],
      "shape unmatched");
  EXPECT_EQ(Metrics(Make<float>(v1::DTYPE_FLOAT32, {0}, {}), b).text[0],
            "unsupported");
  // One element: only the two errors. Squeezed shapes are what counts.
  const TensorMetrics one = Metrics(Make<float>(v1::DTYPE_FLOAT32, {1, 1}, {3}),
                                    Make<float>(v1::DTYPE_FLOAT32, {}, {2}));
  EXPECT_THAT(one.text, ElementsAre("unsupported", "unsupported", "1.0", "0.5",
                                    "unsupported", "unsupported"));
  const PtTensor zero = Make<float>(v1::DTYPE_FLOAT32, {2}, {0, 0});
  EXPECT_EQ(Metrics(zero, zero).text[0], "1.0");
  EXPECT_EQ(Metrics(zero, Make<float>(v1::DTYPE_FLOAT32, {2}, {0, 1})).text[0],
            "Nan");
}

// Several shares of a tensor, on several threads, beside one plain loop.
TEST_F(PtReaderTest, MetricsOfLargeTensors) {
  constexpr int64_t kElements = (2 << 20) + 12345;
  std::vector<float> n(kElements);
  std::vector<float> b(kElements);
  double distance = 0;
  double most = 0;
  int64_t close = 0;
  for (size_t i = 0; i < n.size(); ++i) {
    b[i] = static_cast<float>(i % 1000) + 1;
    n[i] = b[i] * (1 + 1e-5F * static_cast<float>(i % 211));
    if (i % 100'003 == 7) n[i] = b[i] = i % 2 == 0 ? NAN : -INFINITY;
    const double difference = std::isfinite(n[i]) ? n[i] - b[i] : 0;
    distance += difference * difference;
    most = std::max(most, std::fabs(difference));
    close += !std::isfinite(n[i]) || std::fabs(n[i] - b[i]) / b[i] < 0.001F;
  }
  const std::vector<int64_t> shape = {kElements};
  const PtTensor target = Make<float>(v1::DTYPE_FLOAT32, shape, n);
  const PtTensor golden = Make<float>(v1::DTYPE_FLOAT32, shape, b);
  const TensorMetrics floats = Metrics(target, golden);
  EXPECT_NEAR(std::stod(floats.text[1]), std::sqrt(distance), 1e-9 * distance);
  EXPECT_NEAR(std::stod(floats.text[2]), most, 1e-12);
  EXPECT_NEAR(std::stod(floats.text[4]), static_cast<double>(close) / kElements,
              1e-12);
  EXPECT_EQ(floats.text, Metrics(target, golden).text);
  // The same numbers as doubles: only relative errors are rounded differently.
  const TensorMetrics doubles =
      Metrics(Make<double>(v1::DTYPE_FLOAT64, shape, {n.begin(), n.end()}),
              Make<double>(v1::DTYPE_FLOAT64, shape, {b.begin(), b.end()}));
  EXPECT_EQ(doubles.text[1], floats.text[1]);
  EXPECT_EQ(doubles.text[2], floats.text[2]);
  EXPECT_NEAR(std::stod(doubles.text[3]), std::stod(floats.text[3]), 1e-6);
  // A special in the last place of one side is found.
  n.back() = NAN;
  EXPECT_EQ(Metrics(Make<float>(v1::DTYPE_FLOAT32, shape, n), golden).text[0],
            "N/A");
}

JsonValue Number(double value) {
  JsonValue out;
  out.kind = JsonValue::Kind::kFloat;
  out.number = value;
  return out;
}
JsonValue Text(absl::string_view text) {
  JsonValue out;
  out.kind = JsonValue::Kind::kString;
  out.text = text;
  return out;
}

TEST(StatDiffTest, TableOfRules) {
  const auto check = [](const JsonValue& n, const JsonValue& b,
                        const std::string& diff, const std::string& rel) {
    const StatDiff out = CompareStat(n, b);
    EXPECT_EQ(out.difference, diff);
    EXPECT_EQ(out.relative, rel);
  };
  check(Number(3), Number(2), "1.0", "50.0%");
  check(Number(2), Number(2), "0", "0");
  check(Number(2), Number(0), "2.0", "inf");
  check(Number(NAN), Number(NAN), "0", "0");
  check(Number(NAN), Number(1), "Nan", "Nan");
  check(Number(INFINITY), Number(1), "inf", "inf");
  check(Number(1), Number(INFINITY), "-inf", "-inf");
  check(Number(-INFINITY), Number(INFINITY), "-inf", "-inf");
  check(Number(1), Number(-INFINITY), "inf", "inf");
  check(Text("N/A"), Number(1), "N/A", "N/A");
  check(Text("cpu"), Text("npu:0"), "N/A", "N/A");
  check(Text("cpu"), Number(1), "Diff", "Diff");
  check(Text("abc"), Text("abd"), "Diff", "Diff");
  check(JsonValue(), JsonValue(), "0", "0");
  check(JsonValue(), Number(1), "Diff", "Diff");
}

}  // namespace
}  // namespace rankprobe::analysis
