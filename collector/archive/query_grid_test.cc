// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/query_grid.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collector/testing/statistics_fixture.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;

class QueryGridTest : public testing::StatisticsRunTest {
 protected:
  struct Answer {
    absl::Status status;
    v1::GridHead head;
    std::vector<v1::GridRow> rows;
  };
  Answer Ask(const v1::QueryGridRequest& request) {
    Answer answer;
    answer.status = QueryGrid(
        store_.get(), request, [] { return false; },
        [&](v1::GridReply reply) {
          if (reply.has_head()) {
            answer.head = reply.head();
          } else {
            answer.rows.push_back(reply.row());
          }
          return absl::OkStatus();
        });
    return answer;
  }
  static v1::QueryGridRequest Request() {
    v1::QueryGridRequest request;
    request.set_run("run");
    return request;
  }
};

TEST_F(QueryGridTest, ValuesOverSteps) {
  const Answer answer = Ask(Request());
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.head.steps(), 4u);
  EXPECT_EQ(answer.head.rank_steps(), 8u);
  EXPECT_EQ(answer.head.incomplete_rank_steps(), 0u);
  EXPECT_EQ(answer.head.tensors_without(), 8u);
  ASSERT_EQ(answer.rows.size(), 3u);
  EXPECT_EQ(answer.rows[0].name(), "Module.fc.Linear.forward.0.output.0");
  EXPECT_EQ(answer.rows[1].name(), "Module.fc.Linear.parameters_grad.weight");
  EXPECT_EQ(answer.rows[2].name(), "Functional.relu.0.forward.output.0.0");
  EXPECT_EQ(answer.rows[0].cells(0), 2);
  EXPECT_EQ(answer.rows[0].ranks(0), 1);
  EXPECT_TRUE(std::isnan(answer.rows[1].cells(2)));
  EXPECT_EQ(answer.rows[1].non_finite(2), 1u);
  EXPECT_EQ(answer.rows[1].ranks(2), 1);
  EXPECT_EQ(answer.rows[1].cells(3), 50);
}

TEST_F(QueryGridTest, RowsOfModulesCallsAndRanks) {
  v1::QueryGridRequest request = Request();
  request.set_rows(v1::GRID_ROWS_MODULE);
  Answer answer = Ask(request);
  ASSERT_EQ(answer.rows.size(), 2u);
  EXPECT_EQ(answer.rows[0].name(), "Module.fc.Linear");
  EXPECT_EQ(answer.rows[0].cells(0), 20);
  EXPECT_EQ(answer.rows[0].counts(0), 4u);
  EXPECT_EQ(answer.rows[1].name(), "Functional.relu");
  request.set_rows(v1::GRID_ROWS_CALL);
  answer = Ask(request);
  ASSERT_EQ(answer.rows.size(), 3u);
  EXPECT_EQ(answer.rows[2].name(), "Functional.relu.0.forward");
  request.set_rows(v1::GRID_ROWS_RANK);
  request.set_match("*.output.*");
  answer = Ask(request);
  ASSERT_EQ(answer.rows.size(), 2u);
  EXPECT_EQ(answer.rows[0].name(), "rank0");
  EXPECT_EQ(answer.rows[0].cells(3), 4);
  EXPECT_TRUE(std::isnan(answer.rows[1].cells(2)));
}

TEST_F(QueryGridTest, EitherExtremeTellsThatATensorIsNotFinite) {
  Frames frames(MakeIdentity("bad", 0, 5));
  v1::RecordBatch* const batch = frames.AddBatch(0);
  batch->add_records()->mutable_step_begin();
  v1::Record* const record = batch->add_records();
  record->set_order(1);
  record->mutable_call()->set_entry("Torch.log.0.forward");
  record->mutable_call()->set_kind(v1::CALL_KIND_API_FORWARD);
  const double kInf = std::numeric_limits<double>::infinity();
  for (const auto& [max, min] : {std::pair<double, double>{1, -kInf},
                                 {kNaN, kNaN},
                                 {kInf, 0},
                                 {2, -2}}) {
    v1::TensorStats* const stats = record->mutable_call()
                                       ->mutable_output()
                                       ->add_items()
                                       ->mutable_tensor()
                                       ->mutable_stats();
    stats->set_max_f(max);
    stats->set_min_f(min);
    stats->set_norm_f(1);
  }
  ASSERT_TRUE(store_->Commit(frames.All()).ok());
  v1::QueryGridRequest request = Request();
  request.set_run("bad");
  request.set_rows(v1::GRID_ROWS_RANK);
  for (const char* const statistic : {"Max", "Min"}) {
    request.set_statistic(statistic);
    const Answer answer = Ask(request);
    ASSERT_EQ(answer.rows.size(), 1u) << answer.status;
    EXPECT_EQ(answer.rows[0].counts(0), 4u);
    EXPECT_EQ(answer.rows[0].non_finite(0), 3u) << statistic;
  }
  request.set_statistic("Norm");
  EXPECT_EQ(Ask(request).rows[0].non_finite(0), 0u);
}

TEST_F(QueryGridTest, ARankThatCameLateIsInItsPlace) {
  Frames late(MakeIdentity("late", 0, 7)), early(MakeIdentity("late", 10, 8)),
      first(MakeIdentity("late", 2, 9));
  AddStep(&late, 5, 1);
  AddStep(&early, 0, 1);
  AddStep(&first, 1, 1);
  for (const Frames* frames : {&late, &early, &first})
    ASSERT_TRUE(store_->Commit(frames->All()).ok());
  v1::QueryGridRequest request = Request();
  request.set_run("late");
  request.set_rows(v1::GRID_ROWS_RANK);
  const Answer answer = Ask(request);
  ASSERT_EQ(answer.rows.size(), 3u);
  EXPECT_EQ(answer.rows[0].name(), "rank0");
  EXPECT_EQ(answer.rows[0].counts(0), 0u);
  EXPECT_EQ(answer.rows[0].counts(2), 3u);
  EXPECT_EQ(answer.rows[2].name(), "rank10");
}

TEST_F(QueryGridTest, ChoosesStepsRanksAndValues) {
  v1::QueryGridRequest request = Request();
  request.set_first_step(1);
  request.set_last_step(2);
  request.add_ranks(0);
  request.set_values(v1::GRID_VALUES_INPUTS);
  request.set_reducer(v1::GRID_REDUCER_MIN);
  Answer answer = Ask(request);
  ASSERT_EQ(answer.rows.size(), 1u);
  EXPECT_EQ(answer.rows[0].name(), "Module.fc.Linear.forward.0.input.0");
  ASSERT_EQ(answer.head.first_steps_size(), 2);
  EXPECT_EQ(answer.head.first_steps(0), 1);
  EXPECT_EQ(answer.rows[0].cells(1), 300);
  request.set_values(v1::GRID_VALUES_ALL);
  request.set_statistic("max");
  answer = Ask(request);
  ASSERT_EQ(answer.rows.size(), 4u);
  EXPECT_EQ(answer.rows[3].cells(0), 4);
  // It was not requested while the run was recorded.
  request.set_statistic("NanCount");
  answer = Ask(request);
  EXPECT_TRUE(answer.status.ok());
  EXPECT_TRUE(answer.rows.empty());
  EXPECT_EQ(answer.head.tensors(), answer.head.tensors_without());
}

TEST_F(QueryGridTest, SaysWhatIsNotWhole) {
  Frames open(MakeIdentity("run", 2, 3));
  v1::Record* const record = open.AddBatch(3)->add_records();
  record->mutable_step_begin();
  ASSERT_TRUE(store_->Commit(open.All()).ok());
  DeleteOptions removed{.run = "run", .steps = std::set<int64_t>{0}};
  ASSERT_TRUE(store_->Delete(removed).ok());
  const Answer answer = Ask(Request());
  EXPECT_EQ(answer.head.incomplete_rank_steps(), 1u);
  EXPECT_EQ(answer.head.deleted_rank_steps(), 2u);
  EXPECT_EQ(answer.head.first_steps(0), 1);
}

TEST_F(QueryGridTest, WhatCannotBeAsked) {
  v1::QueryGridRequest request = Request();
  request.set_run("nobody");
  EXPECT_TRUE(absl::IsNotFound(Ask(request).status));
  request = Request();
  request.set_statistic("norm\x1b[31m");
  const absl::Status status = Ask(request).status;
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message().find('\x1b'), absl::string_view::npos);
  request = Request();
  request.set_first_step(3);
  request.set_last_step(2);
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(request).status));
  request = Request();
  request.set_match(std::string(4097, '*'));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(request).status));
  request = Request();
  request.set_rows(static_cast<v1::GridRows>(9));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(request).status));
  request = Request();
  request.set_max_cells(2);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(request).status));
  const absl::Status cancelled = QueryGrid(
      store_.get(), Request(), [] { return true; },
      [](v1::GridReply) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsCancelled(cancelled));
}

}  // namespace
}  // namespace rankprobe
