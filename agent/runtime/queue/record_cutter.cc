// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/record_cutter.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/records/call_values.h"
#include "common/records/cut_value.h"

namespace rankprobe {
namespace {

// A CutValue without text, its tags and those around it.
constexpr size_t kCutBytes = 96;
// With less space than this, a value is left out instead of cut.
constexpr size_t kWorthwhileBytes = 512;
// Tags and lengths around an item.
constexpr size_t kItemBytes = 6;

v1::Value* ValueOf(v1::Value* item) { return item; }
v1::Value* ValueOf(v1::NamedValue* item) { return item->mutable_value(); }
const v1::Value& ValueOf(const v1::Value& item) { return item; }
const v1::Value& ValueOf(const v1::NamedValue& item) { return item.value(); }
void Name(v1::Value* item) {}
void Name(v1::NamedValue* item) { item->set_name("rankprobe_cut"); }
size_t NameBytes(const v1::Value& item) { return 0; }
size_t NameBytes(const v1::NamedValue& item) { return item.name().size(); }

class Cutter {
 public:
  explicit Cutter(size_t room) : room_(room) {}

  uint64_t payloads() const { return payloads_; }

  // Keeps the items that fit; the last of them possibly in part.
  template <typename Item>
  void Items(const char* type,
             google::protobuf::RepeatedPtrField<Item>* items) {
    if (items->empty()) return;
    Take(kCutBytes);
    int kept = 0;
    for (; kept < items->size(); ++kept) {
      Item* const item = items->Mutable(kept);
      const size_t bytes = item->ByteSizeLong() + kItemBytes;
      if (bytes <= room_) {
        room_ -= bytes;
        continue;
      }
      if (room_ < kWorthwhileBytes + NameBytes(*item)) break;
      Take(NameBytes(*item) + 2 * kItemBytes);
      if (Value(ValueOf(item))) ++kept;
      break;
    }
    const int size = items->size();
    if (kept == size) return;
    for (int i = kept; i < size; ++i) CountPayloads(ValueOf(items->Get(i)));
    // The front end may have cut the value before.
    const v1::CutValue& end = ValueOf(items->Get(size - 1)).cut();
    const uint64_t true_size = std::max(static_cast<uint64_t>(size),
                                        end.type() == type ? end.size() : 0);
    items->DeleteSubrange(kept, size - kept);
    Item* const cut = items->Add();
    Name(cut);
    SetCut(type, true_size, static_cast<uint64_t>(kept), "bytes", ValueOf(cut));
  }

  // Returns false if no part of the value can be kept.
  bool Value(v1::Value* value) {
    switch (value->kind_case()) {
      case v1::Value::kList:
        Items("list", value->mutable_list()->mutable_items());
        return true;
      case v1::Value::kMap:
        Items("dict", value->mutable_map()->mutable_items());
        return true;
      case v1::Value::kScalar: {
        const std::string text =
            value->scalar().value_case() == v1::ScalarValue::kS
                ? value->scalar().s()
                : value->scalar().big_int();
        const std::string type(
            Utf8Prefix(value->scalar().type(), kCutBytes / 4));
        Take(kCutBytes);
        SetCutText(type, text, room_, "bytes", value);
        Take(value->cut().text().size());
        return true;
      }
      default:
        return false;
    }
  }

  void Whole(v1::Value* value) {
    const size_t bytes = value->ByteSizeLong() + kItemBytes;
    if (bytes <= room_) {
      room_ -= bytes;
      return;
    }
    Take(kCutBytes);
    if (Value(value)) return;
    CountPayloads(*value);
    SetCut("", 0, 0, "bytes", value);
  }

 private:
  void Take(size_t bytes) { room_ -= std::min(room_, bytes); }

  void CountPayloads(const v1::Value& value) {
    ForEachTensor(value, [this](const v1::TensorSummary& tensor) {
      payloads_ += tensor.has_payload() ? 1 : 0;
    });
  }

  size_t room_;
  uint64_t payloads_ = 0;
};

bool CutStack(size_t limit, v1::StackDef* stack) {
  size_t room = limit - kCutBytes;
  int kept = 0;
  for (; kept < stack->frames_size(); ++kept) {
    const size_t bytes = stack->frames(kept).size() + kItemBytes;
    if (bytes > room || kept == kMaxStackFrames - 1) break;
    room -= bytes;
  }
  const int more = stack->frames_size() - kept;
  stack->mutable_frames()->DeleteSubrange(kept, more);
  stack->add_frames(absl::StrCat("... ", more, " more frames"));
  return true;
}

bool CutCall(size_t limit, v1::CallPhase* call, uint64_t* payloads) {
  const size_t names = call->entry().size() + call->debug_path().size();
  // Seven sections, each with its tag and possibly its own cut.
  constexpr size_t kReserve = 1024;
  if (call->entry().size() > kMaxNameBytes || names + kReserve > limit)
    return false;
  Cutter cutter(limit - kReserve - names);
  if (call->has_input_args())
    cutter.Items("list", call->mutable_input_args()->mutable_items());
  if (call->has_input_kwargs())
    cutter.Items("dict", call->mutable_input_kwargs()->mutable_items());
  if (call->has_output())
    cutter.Items("list", call->mutable_output()->mutable_items());
  if (call->has_parameters())
    cutter.Items("dict", call->mutable_parameters()->mutable_items());
  if (call->has_input())
    cutter.Items("list", call->mutable_input()->mutable_items());
  if (call->has_gradients())
    cutter.Items("dict", call->mutable_gradients()->mutable_items());
  if (call->has_debug()) cutter.Whole(call->mutable_debug());
  *payloads = cutter.payloads();
  return true;
}

bool Cut(size_t limit, v1::Record* record, uint64_t* payloads) {
  switch (record->body_case()) {
    case v1::Record::kCall:
      return CutCall(limit, record->mutable_call(), payloads);
    case v1::Record::kStack:
      return CutStack(limit, record->mutable_stack());
    case v1::Record::kError: {
      const std::string head(
          Utf8Prefix(record->error().message(), kMaxTextBytes));
      record->mutable_error()->set_message(head);
      return true;
    }
    default:
      return false;
  }
}

const std::string& EntryOf(const v1::Record& record) {
  static const std::string& none = *new std::string();
  switch (record.body_case()) {
    case v1::Record::kCall:
      return record.call().entry();
    case v1::Record::kStackUse:
      return record.stack_use().entry();
    case v1::Record::kEdge:
      return record.edge().entry();
    default:
      return none;
  }
}

}  // namespace

bool ExceedsLimits(const v1::Record& record, size_t bytes) {
  if (bytes > kMaxRecordBytes) return true;
  if (record.has_stack()) return record.stack().frames_size() > kMaxStackFrames;
  return EntryOf(record).size() > kMaxNameBytes;
}

bool CutRecord(size_t limit, v1::Record* record, v1::LossEvent* loss) {
  loss->set_reason(v1::LOSS_REASON_TOO_LARGE);
  const size_t bytes = record->ByteSizeLong();
  loss->set_bytes(bytes);
  loss->set_entry(std::string(Utf8Prefix(EntryOf(*record), 256)));
  uint64_t payloads = 0;
  if (Cut(limit, record, &payloads) && record->ByteSizeLong() <= limit) {
    loss->set_payloads(payloads);
    loss->set_detail(
        absl::StrCat("a record of ", bytes, " bytes was cut to ", limit));
    return true;
  }
  if (record->has_call()) {
    ForEachTensor(static_cast<const v1::CallPhase&>(record->call()),
                  [&payloads](const v1::TensorSummary& tensor) {
                    payloads += tensor.has_payload() ? 1 : 0;
                  });
  }
  loss->set_records(1);
  loss->set_payloads(payloads);
  loss->set_detail(absl::StrCat("a record of ", bytes, " bytes; a frame has ",
                                limit, ", a name ", kMaxNameBytes));
  return false;
}

}  // namespace rankprobe
