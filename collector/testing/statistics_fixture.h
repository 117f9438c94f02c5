// SPDX-License-Identifier: Apache-2.0
// A store with a run "run" of two ranks and four steps, each a module, its
// gradients and a call, for tests of queries for statistics. One gradient of
// rank 1 is NaN in step 2, one tensor has no statistics.
#ifndef RANKPROBE_COLLECTOR_TESTING_STATISTICS_FIXTURE_H_
#define RANKPROBE_COLLECTOR_TESTING_STATISTICS_FIXTURE_H_

#include <limits>
#include <memory>
#include <string>

#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

class StatisticsRunTest : public TempDirTest {
 protected:
  // Adds one step of a rank. Norms are `scale` for outputs, 10 times it for the
  // gradient, 100 times for the input, half for the call.
  static void AddStep(Frames* frames, int64_t step, double scale) {
    v1::RecordBatch* const batch = frames->AddBatch(step);
    batch->add_records()->mutable_step_begin();
    uint64_t order = 1;
    const auto call = [&](const std::string& entry, v1::CallKind kind) {
      v1::Record* const record = batch->add_records();
      record->set_order(order++);
      record->mutable_call()->set_entry(entry);
      record->mutable_call()->set_kind(kind);
      return record->mutable_call();
    };
    const auto fill = [](v1::Value* value, double norm, double largest) {
      value->mutable_tensor()->mutable_stats()->set_norm_f(norm);
      value->mutable_tensor()->mutable_stats()->set_max_f(largest);
    };
    v1::CallPhase* const module =
        call("Module.fc.Linear.forward.0", v1::CALL_KIND_MODULE_FORWARD);
    fill(module->mutable_input_args()->add_items(), 100 * scale, 1);
    fill(module->mutable_output()->add_items(), scale, 2);
    v1::NamedValue* const weight =
        call("Module.fc.Linear.parameters_grad", v1::CALL_KIND_PARAMETERS_GRAD)
            ->mutable_gradients()
            ->add_items();
    weight->set_name("weight");
    fill(weight->mutable_value(), 10 * scale, 3);
    v1::CallPhase* const relu =
        call("Functional.relu.0.forward", v1::CALL_KIND_API_FORWARD);
    v1::ValueList* const nested =
        relu->mutable_output()->add_items()->mutable_list();
    fill(nested->add_items(), scale / 2, 4);
    // Has no statistics, like a meta tensor.
    nested->add_items()->mutable_tensor();
    v1::Record* const end = batch->add_records();
    end->set_order(order);
    end->mutable_step_end()->set_call_phases(3);
  }

  void SetUp() override {
    TempDirTest::SetUp();
    store_ = OpenStore();
    for (int rank = 0; rank < 2; ++rank) {
      Frames frames(MakeIdentity("run", rank, 1 + rank));
      for (int step = 0; step < 4; ++step)
        AddStep(&frames, step, rank == 1 && step == 2 ? kNaN : 1 + step + rank);
      ASSERT_TRUE(store_->Commit(frames.All()).ok());
    }
  }

  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  std::unique_ptr<Store> store_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_TESTING_STATISTICS_FIXTURE_H_
