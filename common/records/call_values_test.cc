// SPDX-License-Identifier: Apache-2.0
#include "common/records/call_values.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "common/base/limits.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Puts a tensor wherever the messages can hold one, by reflection: fields that
// are added later are found too. `nesting` bounds lists in lists.
class Filler {
 public:
  void Fill(Message* message, int nesting) {
    const Reflection* reflection = message->GetReflection();
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->field(i);
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
      if (field->message_type() == v1::TensorSummary::descriptor()) {
        auto* tensor = static_cast<v1::TensorSummary*>(
            reflection->MutableMessage(message, field));
        tensor->set_dtype_name("t" + std::to_string(++tensors_));
      } else if (field->message_type() == v1::Value::descriptor()) {
        if (field->is_repeated()) {
          AddEachKind(nesting,
                      [&] { return reflection->AddMessage(message, field); });
        } else {
          // One value, because a list can contain all.
          auto* value = static_cast<v1::Value*>(
              reflection->MutableMessage(message, field));
          Fill(value->mutable_list(), nesting);
        }
      } else if (field->is_repeated()) {
        AddEachKind(nesting, [&] {
          auto* named = static_cast<v1::NamedValue*>(
              reflection->AddMessage(message, field));
          return named->mutable_value();
        });
      } else {
        Fill(reflection->MutableMessage(message, field), nesting);
      }
    }
  }
  int tensors() const { return tensors_; }

 private:
  template <typename Add>
  void AddEachKind(int nesting, Add add) {
    const auto* kinds = v1::Value::descriptor()->FindOneofByName("kind");
    for (int i = 0; i < kinds->field_count(); ++i) {
      Message* value = add();
      const FieldDescriptor* kind = kinds->field(i);
      Message* content = value->GetReflection()->MutableMessage(value, kind);
      if (kind->message_type() == v1::TensorSummary::descriptor()) {
        static_cast<v1::TensorSummary*>(content)->set_dtype_name(
            "t" + std::to_string(++tensors_));
      } else if (nesting > 0) {
        Fill(content, nesting - 1);
      }
    }
  }

  int tensors_ = 0;
};

TEST(CallValuesTest, EveryTensorThatAPhaseCanHoldIsVisitedOnce) {
  v1::CallPhase phase;
  Filler filler;
  filler.Fill(&phase, 2);
  ASSERT_GT(filler.tensors(), 7 * 4);
  std::set<std::string> seen;
  ForEachTensor(phase, [&](const v1::TensorSummary& tensor) {
    EXPECT_TRUE(seen.insert(tensor.dtype_name()).second) << tensor.dtype_name();
  });
  EXPECT_EQ(seen.size(), static_cast<size_t>(filler.tensors()))
      << phase.ShortDebugString();
}

TEST(CallValuesTest, TheMutableWalkChangesThePhase) {
  v1::CallPhase phase;
  Filler filler;
  filler.Fill(&phase, 1);
  ForEachTensor(&phase, [](v1::TensorSummary* tensor) {
    tensor->set_dtype_name("changed");
  });
  int changed = 0;
  ForEachTensor(phase, [&](const v1::TensorSummary& tensor) {
    if (tensor.dtype_name() == "changed") ++changed;
  });
  EXPECT_EQ(changed, filler.tensors());
}

TEST(CallValuesTest, TheMutableWalkAddsNothing) {
  v1::CallPhase phase;
  phase.set_entry("Torch.f.0.forward");
  phase.mutable_output()->add_items()->mutable_p2p();
  const std::string before = phase.SerializeAsString();
  ForEachTensor(&phase, [](v1::TensorSummary*) { FAIL(); });
  EXPECT_EQ(phase.SerializeAsString(), before);
}

TEST(CallValuesTest, PlacesNameSectionAndItem) {
  v1::CallPhase phase;
  phase.mutable_input_args()->add_items()->mutable_scalar();
  phase.mutable_input_args()
      ->add_items()
      ->mutable_list()
      ->add_items()
      ->mutable_tensor();
  phase.mutable_gradients()->add_items()->mutable_value()->mutable_tensor();
  std::vector<TensorPlace> places;
  ForEachPlacedTensor(phase, [&](TensorPlace place, const v1::TensorSummary&) {
    places.push_back(place);
  });
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].section, CallSection::kInputArgs);
  EXPECT_EQ(places[0].index, 1);
  EXPECT_EQ(places[1].section, CallSection::kGradients);
  EXPECT_EQ(places[1].index, 0);
}

TEST(CallValuesTest, ListsAndDictsCountTheirMessages) {
  v1::CallPhase phase;
  EXPECT_EQ(NestedMessages(phase), 0);
  phase.mutable_output()->add_items()->mutable_scalar();
  EXPECT_EQ(NestedMessages(phase), 0);
  v1::Value* const value = phase.mutable_debug();
  value->mutable_list();
  EXPECT_EQ(NestedMessages(phase), 0);
  value->mutable_list()->add_items()->mutable_map()->add_items();
  EXPECT_EQ(NestedMessages(*value), kListMessages + kMapMessages);
  EXPECT_EQ(NestedMessages(phase), kListMessages + kMapMessages);
}

// The purpose of the limit: protobuf can read the deepest legal value at the
// deepest place of a frame.
TEST(CallValuesTest, TheDeepestLegalValueCanBeRead) {
  for (const bool maps : {false, true}) {
    v1::UploadFrame frame;
    v1::Value* value = frame.mutable_batch()
                           ->add_records()
                           ->mutable_call()
                           ->mutable_input_kwargs()
                           ->add_items()
                           ->mutable_value();
    int messages = 0;
    const int each = maps ? kMapMessages : kListMessages;
    for (; messages + each <= kMaxValueMessages; messages += each) {
      value = maps ? value->mutable_map()->add_items()->mutable_value()
                   : value->mutable_list()->add_items();
    }
    EXPECT_EQ(messages, kMaxValueMessages);
    v1::TensorSummary* const tensor = value->mutable_p2p()->mutable_tensor();
    tensor->mutable_stats()->set_max_f(1);
    tensor->mutable_payload()->set_length_bytes(1);
    tensor->add_placements()->set_dim(1);
    EXPECT_EQ(NestedMessages(frame.batch().records(0).call()),
              kMaxValueMessages);
    v1::UploadFrame read;
    EXPECT_TRUE(read.ParseFromString(frame.SerializeAsString()));
  }
}

}  // namespace
}  // namespace rankprobe
