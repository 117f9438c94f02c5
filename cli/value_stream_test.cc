// SPDX-License-Identifier: Apache-2.0
#include "cli/output/value_stream.h"

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(ValueStreamTest, AFrameIsAHeaderAndItsBuffers) {
  v1::ValueBatch batch;
  v1::ValueName* const name = batch.add_names();
  name->set_entry("Module.a\"b.Linear.forward.0");
  name->set_value("output.0");
  batch.set_rows(1);
  batch.set_steps(std::string(8, 's'));
  batch.set_ranks(std::string(8, 'r'));
  batch.set_pids(std::string(8, 'p'));
  batch.set_name_numbers(std::string(4, 'n'));
  v1::StatisticColumn* const column = batch.add_columns();
  column->set_key("Norm");
  column->set_numbers(std::string(8, 'x'));
  column->set_present("\x01");
  std::string out;
  ASSERT_TRUE(AppendValueFrame(batch, &out).ok());
  const size_t header = static_cast<unsigned char>(out[0]) |
                        static_cast<size_t>(static_cast<unsigned char>(out[1]))
                            << 8;
  EXPECT_NE(out.find("Module.a\\\"b.Linear.forward.0"), std::string::npos);
  EXPECT_EQ(out.substr(4 + header),
            std::string(8, 's') + std::string(8, 'r') + std::string(8, 'p') +
                std::string(8, 'x') + std::string(4, 'n') + "\x01");
}

// Messages of a collector are not trusted.
TEST(ValueStreamTest, ColumnsThatAreTooShortAreRefused) {
  v1::ValueBatch batch;
  batch.set_rows(4294967295u);
  batch.set_steps("short");
  std::string out;
  EXPECT_TRUE(absl::IsDataLoss(AppendValueFrame(batch, &out)));
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace rankprobe
