// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/read_values.h"

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/archive/rollup.h"
#include "collector/testing/statistics_fixture.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;

template <typename T>
T NumberAt(const std::string& bytes, size_t row) {
  T value{};
  EXPECT_LE((row + 1) * sizeof(T), bytes.size());
  std::memcpy(&value, bytes.data() + row * sizeof(T), sizeof(T));
  return value;
}

class ReadValuesTest : public testing::StatisticsRunTest {
 protected:
  struct Row {
    int64_t step = 0, rank = 0, pid = 0;
    std::string entry, value;
    std::map<std::string, double> numbers;
    // The text makes a NaN equal to itself.
    std::string Text() const {
      std::string text =
          absl::StrCat(step, " ", rank, " ", pid, " ", entry, "|", value);
      for (const auto& [key, number] : numbers)
        absl::StrAppend(&text, " ", key, "=", number);
      return text;
    }
  };
  struct Answer {
    absl::Status status;
    std::vector<Row> rows;
    std::optional<v1::ValuesEnd> end;
    size_t batches = 0;
  };
  Answer Ask(const v1::ReadValuesRequest& request) {
    Answer answer;
    std::vector<v1::ValueName> names;
    answer.status = ReadValues(
        store_.get(), request, [] { return false; },
        [&](v1::ValuesReply reply) {
          EXPECT_FALSE(answer.end.has_value());
          if (reply.has_end()) {
            answer.end = reply.end();
            return absl::OkStatus();
          }
          ++answer.batches;
          const v1::ValueBatch& batch = reply.batch();
          names.insert(names.end(), batch.names().begin(), batch.names().end());
          for (size_t i = 0; i < batch.rows(); ++i) {
            Row row;
            row.step = NumberAt<int64_t>(batch.steps(), i);
            row.rank = NumberAt<int64_t>(batch.ranks(), i);
            row.pid = NumberAt<int64_t>(batch.pids(), i);
            const auto name = NumberAt<uint32_t>(batch.name_numbers(), i);
            EXPECT_LT(name, names.size());
            row.entry = names[name].entry();
            row.value = names[name].value();
            for (const v1::StatisticColumn& column : batch.columns()) {
              EXPECT_EQ(column.present().size(), (batch.rows() + 7) / 8);
              EXPECT_EQ(column.numbers().size(), batch.rows() * sizeof(double));
              if ((column.present()[i / 8] >> (i % 8) & 1) != 0) {
                row.numbers[column.key()] =
                    NumberAt<double>(column.numbers(), i);
              }
            }
            answer.rows.push_back(std::move(row));
          }
          return absl::OkStatus();
        });
    return answer;
  }
  static v1::ReadValuesRequest Request() {
    v1::ReadValuesRequest request;
    request.set_run("run");
    request.set_values(v1::GRID_VALUES_ALL);
    return request;
  }
  static std::vector<std::string> Texts(const Answer& answer) {
    std::vector<std::string> texts;
    for (const Row& row : answer.rows) texts.push_back(row.Text());
    return texts;
  }
};

TEST_F(ReadValuesTest, ARowForEachValue) {
  const Answer answer = Ask(Request());
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.rows.size(), 2u * 4 * 5);
  ASSERT_TRUE(answer.end.has_value());
  EXPECT_EQ(answer.end->rows(), answer.rows.size());
  EXPECT_EQ(answer.end->rank_steps(), 8u);
  const Row& input = answer.rows[0];
  EXPECT_EQ(input.entry, "Module.fc.Linear.forward.0");
  EXPECT_EQ(input.value, "input.0");
  EXPECT_EQ(input.step, 0);
  EXPECT_EQ(input.rank, 0);
  EXPECT_EQ(input.numbers,
            (std::map<std::string, double>{{"Norm", 100}, {"Max", 1}}));
  // The tensor without statistics is a row without numbers.
  EXPECT_EQ(answer.rows[4].value, "output.0.1");
  EXPECT_TRUE(answer.rows[4].numbers.empty());
  EXPECT_EQ(answer.rows[5].rank, 1);
  EXPECT_EQ(answer.rows[10].step, 1);
  const Row& gradient = answer.rows[(2 * 2 + 1) * 5 + 2];
  EXPECT_EQ(gradient.value, "weight");
  EXPECT_TRUE(std::isnan(gradient.numbers.at("Norm")));
  EXPECT_EQ(gradient.numbers.at("Max"), 3);
}

TEST_F(ReadValuesTest, RollupsSayWhatTheRecordsSay) {
  const std::vector<std::string> records = Texts(Ask(Request()));
  RollupMaker maker(store_.get());
  EXPECT_EQ(maker.RollUpPending([] { return false; }).steps, 8u);
  EXPECT_EQ(Texts(Ask(Request())), records);
}

TEST_F(ReadValuesTest, ChoosesStepsRanksAndValues) {
  v1::ReadValuesRequest request = Request();
  request.add_steps(1);
  request.add_steps(3);
  request.add_ranks(1);
  request.set_match("fc.*output");
  EXPECT_TRUE(Ask(request).rows.empty());
  request.set_match("*fc*output*");
  const Answer answer = Ask(request);
  ASSERT_EQ(answer.rows.size(), 2u);
  EXPECT_EQ(answer.rows[0].step, 1);
  EXPECT_EQ(answer.rows[1].step, 3);
  EXPECT_EQ(answer.rows[1].numbers.at("Norm"), 5);
  request.set_values(v1::GRID_VALUES_INPUTS);
  EXPECT_TRUE(Ask(request).rows.empty());
}

TEST_F(ReadValuesTest, ManyRowsAreManyBatches) {
  Frames frames(MakeIdentity("long", 0, 9));
  for (int step = 0; step < 4000; ++step) AddStep(&frames, step, step);
  ASSERT_TRUE(store_->Commit(frames.All()).ok());
  v1::ReadValuesRequest request = Request();
  request.set_run("long");
  const Answer answer = Ask(request);
  ASSERT_EQ(answer.rows.size(), 4000u * 5);
  EXPECT_EQ(answer.batches, 3u);
  for (size_t i = 0; i < answer.rows.size(); i += 5) {
    ASSERT_EQ(answer.rows[i + 1].step, static_cast<int64_t>(i / 5));
    ASSERT_EQ(answer.rows[i + 1].numbers.at("Norm"),
              static_cast<double>(i / 5));
    ASSERT_TRUE(answer.rows[i + 4].numbers.empty());
  }
}

TEST_F(ReadValuesTest, WhatCannotBeRead) {
  v1::ReadValuesRequest request = Request();
  request.set_run("nobody");
  EXPECT_TRUE(absl::IsNotFound(Ask(request).status));
  request = Request();
  request.set_values(static_cast<v1::GridValues>(7));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(request).status));
  request = Request();
  request.set_match(std::string(4097, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(request).status));
  const absl::Status gone = ReadValues(
      store_.get(), Request(), [] { return true; },
      [](v1::ValuesReply) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsCancelled(gone));
  const absl::Status full = ReadValues(
      store_.get(), Request(), [] { return false; },
      [](v1::ValuesReply) { return absl::ResourceExhaustedError("full"); });
  EXPECT_TRUE(absl::IsResourceExhausted(full));
}

}  // namespace
}  // namespace rankprobe
