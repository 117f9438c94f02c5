// SPDX-License-Identifier: Apache-2.0
// A run with summaries that are made and queried; for tests.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_TESTING_SUMMARY_FIXTURE_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_TESTING_SUMMARY_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/archive/query_grid.h"
#include "collector/archive/rollup.h"
#include "collector/archive/summary_reader.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/step_summary.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

class SummaryTest : public TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    store_ = OpenStore();
    maker_ = std::make_unique<SummaryMaker>(store_.get());
  }

  // Closes the store first, because LevelDB would still write while its files
  // are deleted.
  void TearDown() override {
    maker_.reset();
    store_.reset();
    TempDirTest::TearDown();
  }

  // Adds a step of three calls; `end`: with the step's end.
  static void AddStep(Frames* frames, int64_t step, double value,
                      bool end = true, uint64_t order = 0) {
    v1::RecordBatch* const batch = frames->AddBatch(step);
    v1::Record* const begin = batch->add_records();
    begin->set_order(order++);
    begin->mutable_step_begin();
    for (int call = 0; call < 3; ++call) {
      v1::Record* const record = batch->add_records();
      record->set_order(order++);
      v1::CallPhase* const phase = record->mutable_call();
      phase->set_entry(absl::StrCat("Functional.f", call, ".0.forward"));
      phase->set_kind(v1::CALL_KIND_API_FORWARD);
      const auto fill = [](double number, v1::Value* into) {
        v1::TensorStats* const stats = into->mutable_tensor()->mutable_stats();
        stats->set_norm_f(number);
        stats->set_max_f(number * 2);
        stats->set_min_f(-number);
      };
      fill(value * 3, phase->mutable_input_args()->add_items());
      fill(value + call, phase->mutable_output()->add_items());
      if (call == 1) phase->mutable_output()->add_items()->mutable_tensor();
    }
    if (!end) return;
    v1::Record* const last = batch->add_records();
    last->set_order(order);
    last->mutable_step_end()->set_call_phases(3);
  }

  void Commit(const Frames& frames) {
    ASSERT_TRUE(store_->Commit(frames.All()).ok());
  }
  void Rest() { clock_.Advance(absl::Seconds(11)); }
  void RollUp() {
    RollupMaker(store_.get()).RollUpPending([] { return false; });
  }
  // Makes all levels. A new row touches the one above, which then has to rest
  // again.
  void MakeSummaries() {
    RollUp();
    for (int level = 0; level < kSummaryLevels; ++level) {
      Rest();
      ASSERT_TRUE(maker_->MakePending([] { return false; }).ok());
    }
  }
  void Reopen() {
    maker_.reset();
    store_.reset();
    store_ = OpenStore();
    maker_ = std::make_unique<SummaryMaker>(store_.get());
  }
  // Steps of process 1 of "run" that have a head in table h, and the numbers of
  // the rows of level 1 that contain heads.
  struct Kept {
    std::vector<int64_t> heads;
    std::vector<uint64_t> rows;
  };
  Kept WhereHeadsAre() {
    Kept kept;
    const uint32_t run = *store_->RunNumber("run");
    EditIndex([&](Index* index, IndexBatch*) {
      EXPECT_TRUE(index
                      ->Scan(keys::RollupHeads(run, 1),
                             [&](absl::string_view key, absl::string_view) {
                               kept.heads.push_back(
                                   *keys::ParseRollupStep(key));
                               return absl::OkStatus();
                             })
                      .ok());
      EXPECT_TRUE(
          index
              ->Scan(keys::SummaryLevel(run, 1),
                     [&](absl::string_view key, absl::string_view value) {
                       if (*keys::ParseTileIncarnation(key) == 1 &&
                           SummaryTileView::HasHeads(value))
                         kept.rows.push_back(*keys::ParseTile(key));
                       return absl::OkStatus();
                     })
              .ok());
    });
    return kept;
  }
  // Edits the store's index, which is opened again afterwards.
  void EditIndex(
      const std::function<void(Index* index, IndexBatch* batch)>& edit) {
    maker_.reset();
    store_.reset();
    {
      IndexOptions index_options{.directory = root_ + "/data/index",
                                 .file_system = file_system_.get()};
      auto index = OpenLevelDbIndex(index_options);
      ASSERT_TRUE(index.ok());
      auto batch = (*index)->NewBatch();
      edit(index->get(), batch.get());
      ASSERT_TRUE((*index)->Write(std::move(batch), /*sync=*/true).ok());
    }
    store_ = OpenStore();
    maker_ = std::make_unique<SummaryMaker>(store_.get());
  }
  size_t Tiles(int level, uint64_t incarnation) {
    size_t tiles = 0;
    const ProcessRange all{incarnation, 0, INT64_MAX};
    EXPECT_TRUE(store_
                    ->ForEachTileIn(*store_->RunNumber("run"), level, {&all, 1},
                                    [&](size_t, uint64_t, absl::string_view) {
                                      ++tiles;
                                      return absl::OkStatus();
                                    })
                    .ok());
    return tiles;
  }

  struct Answer {
    v1::GridHead head;
    std::string text;
  };
  // `each`: from the values of each step.
  Answer Ask(v1::QueryGridRequest request, bool each) {
    if (each) request.set_match("*");
    const Answer answer = Ask(std::move(request));
    EXPECT_EQ(answer.head.from_summaries(), !each);
    return answer;
  }
  // Answers from summaries, rollups or records, whichever the archive has.
  Answer Ask(v1::QueryGridRequest request) {
    request.set_run("run");
    request.set_rows(v1::GRID_ROWS_RANK);
    Answer answer;
    const absl::Status status = QueryGrid(
        store_.get(), request, [] { return false; },
        [&](v1::GridReply reply) {
          if (reply.has_head()) {
            answer.head = reply.head();
            reply.mutable_head()->clear_from_summaries();
            reply.mutable_head()->clear_rolled_up_rank_steps();
          }
          absl::StrAppend(&answer.text, reply.ShortDebugString(), "\n");
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return answer;
  }

  // Expects the same answers from summaries and from values, for each of the
  // three requests, with large and small limits, for all and for some ranks.
  void ExpectTheSame() {
    for (int kind = 0; kind < 3; ++kind) {
      for (const uint32_t cells : {8u, 40u, 333u, 100000u}) {
        for (int part = 0; part < 4; ++part) {
          v1::QueryGridRequest request;
          request.set_max_cells(cells);
          if (kind > 0) {
            request.set_statistic(kind == 1 ? "Max" : "Min");
            request.set_values(v1::GRID_VALUES_ALL);
            if (kind == 2) request.set_reducer(v1::GRID_REDUCER_MIN);
          }
          if (part % 2 == 1) {
            request.set_first_step(5);
            request.set_last_step(203);
          }
          if (part >= 2) {
            request.add_ranks(0);
            request.add_ranks(2);
          }
          EXPECT_EQ(Ask(request, false).text, Ask(request, true).text)
              << request.ShortDebugString();
        }
      }
    }
  }

  std::unique_ptr<Store> store_;
  std::unique_ptr<SummaryMaker> maker_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_TESTING_SUMMARY_FIXTURE_H_
