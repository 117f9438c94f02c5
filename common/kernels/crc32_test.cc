#include "common/kernels/crc32.h"

#include <libdeflate.h>

#include <random>
#include <string>

#include "gtest/gtest.h"

namespace rankprobe::kernels {
namespace {

TEST(Crc32Test, KnownValue) { EXPECT_EQ(Crc32(0, "123456789", 9), 0xcbf43926); }

TEST(Crc32Test, EqualsTheLibraryAtEveryLengthAndOffset) {
  std::mt19937 random(1);
  std::string data(20000, '\0');
  for (char& c : data) c = static_cast<char>(random());
  for (size_t length = 0; length < 1200; ++length) {
    const size_t offset = length % 67;
    const uint32_t crc = static_cast<uint32_t>(random());
    ASSERT_EQ(Crc32(crc, data.data() + offset, length),
              libdeflate_crc32(crc, data.data() + offset, length))
        << length;
  }
  for (int i = 0; i < 200; ++i) {
    const size_t length = random() % data.size();
    ASSERT_EQ(Crc32(0, data.data(), length),
              libdeflate_crc32(0, data.data(), length))
        << length;
  }
}

TEST(Crc32Test, PiecesEqualTheWhole) {
  const std::string data(5000, 'x');
  uint32_t crc = 0;
  for (size_t at = 0; at < data.size(); at += 1250)
    crc = Crc32(crc, data.data() + at, 1250);
  EXPECT_EQ(crc, Crc32(0, data.data(), data.size()));
}

}  // namespace
}  // namespace rankprobe::kernels
