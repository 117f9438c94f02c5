// SPDX-License-Identifier: Apache-2.0
#include "collector/testing/dump_importer.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/records/entry_names.h"
#include "common/tensor/dtype.h"
#include "dump_format/dump_walk.h"
#include "dump_format/json_value.h"

namespace rankprobe::testing {
namespace {

using Json = JsonValue;

// The test data must contain the member.
const Json& At(const Json& v, absl::string_view key) {
  static const Json* const kNone = new Json();
  const Json* const found = v.Find(key);
  EXPECT_NE(found, nullptr) << key;
  return found == nullptr ? *kNone : *found;
}

std::string Str(const Json& v) {
  EXPECT_TRUE(v.is_string());
  return std::string(v.text);
}

std::optional<int64_t> MaybeInt(const Json& v) {
  int64_t number = 0;
  if (v.kind != Json::Kind::kInt || !absl::SimpleAtoi(v.text, &number))
    return std::nullopt;
  return number;
}

int64_t Int(const Json& v) {
  const std::optional<int64_t> number = MaybeInt(v);
  EXPECT_TRUE(number.has_value()) << v.text;
  return number.value_or(0);
}

bool Bool(const Json& v) {
  EXPECT_TRUE(v.is_bool());
  return v.kind == Json::Kind::kTrue;
}

class Importer {
 public:
  explicit Importer(Frames* frames) : frames_(frames) {}

  void Tensor(const Json& leaf, const std::string& name,
              v1::TensorSummary* out) {
    const std::string type = Str(At(leaf, "type"));
    if (type == "numpy.ndarray") {
      out->set_numpy(true);
      out->set_numpy_dtype(Str(At(leaf, "dtype")));
      out->set_dtype(ParseDtype(Str(At(leaf, "dtype"))));
    } else {
      if (type != "torch.Tensor") out->set_type(type);
      out->set_dtype(ParseDtype(Str(At(leaf, "dtype"))));
      out->set_requires_grad(Bool(At(leaf, "requires_grad")));
    }
    uint64_t bytes = ElementSize(out->dtype());
    for (const Json& size : At(leaf, "shape").items()) {
      out->add_shape(Int(size));
      bytes *= static_cast<uint64_t>(Int(size));
    }
    if (leaf.Find("Max") != nullptr) {
      v1::TensorStats& s = *out->mutable_stats();
      Stat(
          At(leaf, "Max"), [&](double v) { s.set_max_f(v); },
          [&](int64_t v) { s.set_max_i(v); }, [&](bool v) { s.set_max_b(v); });
      Stat(
          At(leaf, "Min"), [&](double v) { s.set_min_f(v); },
          [&](int64_t v) { s.set_min_i(v); }, [&](bool v) { s.set_min_b(v); });
      Stat(
          At(leaf, "Mean"), [&](double v) { s.set_mean_f(v); },
          [&](int64_t v) { s.set_mean_i(v); }, [](bool) {});
      Stat(
          At(leaf, "Norm"), [&](double v) { s.set_norm_f(v); },
          [&](int64_t v) { s.set_norm_i(v); }, [](bool) {});
    }
    if (leaf.Find("md5") != nullptr) {
      if (At(leaf, "md5").is_null()) {
        out->mutable_checksum()->set_null(true);
      } else {
        const std::string text = Str(At(leaf, "md5"));
        if (absl::StartsWith(text, "0x")) {
          out->mutable_checksum()->set_xor64(std::stoull(text, nullptr, 16));
        } else {
          out->mutable_checksum()->set_crc32(
              static_cast<uint32_t>(std::stoul(text, nullptr, 16)));
        }
      }
    }
    if (leaf.Find("data_name") != nullptr) {
      EXPECT_EQ(Str(At(leaf, "data_name")), name + ".pt");
      std::string data;
      while (data.size() < bytes) absl::StrAppend(&data, "payload of ", name);
      data.resize(bytes);
      frames_->AddPayload(data);
      out->mutable_payload()->set_digest(DigestOf(data));
      out->mutable_payload()->set_length_bytes(bytes);
    }
  }

  void Value(const Json& v, const std::string& name, v1::Value* out) {
    using Leaf = v1::ObjectLeaf;
    if (v.is_null()) return;
    if (v.is_array()) return List(v, name, out->mutable_list());
    if (v.is_string())
      return Object(Leaf::KIND_BARE_TEXT, out)->set_text(Str(v));
    if (const std::optional<int64_t> number = MaybeInt(v))
      return Object(Leaf::KIND_BARE_INT, out)->add_ints(*number);
    const Json* const type_value = v.Find("type");
    if (type_value == nullptr || !type_value->is_string()) {
      if (v.size == 0 && absl::StrContains(name, "weird_empty"))
        Object(Leaf::KIND_EMPTY_OBJECT, out);
      return Map(v, name, out->mutable_map());
    }
    const std::string type = Str(*type_value);
    if (v.Find("shape") != nullptr)
      return Tensor(v, name, out->mutable_tensor());
    if (type == "slice") {
      Leaf* leaf = Object(Leaf::KIND_SLICE, out);
      ASSERT_EQ(At(v, "value").items().size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        const Json& part = At(v, "value").items()[i];
        if (part.is_null()) leaf->set_null_mask(leaf->null_mask() | 1u << i);
        leaf->add_ints(part.is_null() ? 0 : Int(part));
      }
    } else if (type == "ellipsis") {
      Object(Leaf::KIND_ELLIPSIS, out);
    } else if (type == "torch.Size") {
      Leaf* leaf = Object(Leaf::KIND_TORCH_SIZE, out);
      for (const Json& size : At(v, "value").items()) leaf->add_ints(Int(size));
    } else if (type == "torch.memory_format") {
      Object(Leaf::KIND_MEMORY_FORMAT, out)->set_text(Str(At(v, "format")));
    } else if (type == "torch.dtype") {
      Object(Leaf::KIND_DTYPE, out)->set_text(Str(At(v, "value")));
    } else if (type == "torch.device") {
      Object(Leaf::KIND_DEVICE, out)->set_text(Str(At(v, "value")));
    } else if (type == "torch.distributed.ReduceOp") {
      Object(Leaf::KIND_REDUCE_OP, out)->set_text(Str(At(v, "value")));
    } else if (type == "torch.ProcessGroup") {
      Leaf* leaf = Object(Leaf::KIND_PROCESS_GROUP, out);
      for (const Json& rank : At(v, "group_ranks").items())
        leaf->add_ints(Int(rank));
      leaf->set_text(Str(At(v, "group_id")));
    } else {
      Scalar(v, type, out->mutable_scalar());
    }
  }

  void Map(const Json& v, const std::string& name, v1::ValueMap* out) {
    for (const JsonMember& member : v.fields()) {
      v1::NamedValue* item = out->add_items();
      item->set_name(std::string(member.key));
      Value(member.value, absl::StrCat(name, ".", item->name()),
            item->mutable_value());
    }
  }

  void List(const Json& v, const std::string& name, v1::ValueList* out) {
    for (size_t i = 0; i < v.size; ++i)
      Value(v.items()[i], absl::StrCat(name, ".", i), out->add_items());
  }

  void Entry(const std::string& entry, const Json& record,
             v1::CallPhase* call) {
    call->set_entry(entry);
    switch (ClassifyEntry(entry)) {
      case EntryKind::kDebug:
        call->set_kind(v1::CALL_KIND_DEBUG);
        Value(record, entry, call->mutable_debug());
        return;
      case EntryKind::kParametersGrad:
        call->set_kind(v1::CALL_KIND_PARAMETERS_GRAD);
        for (const JsonMember& member : record.fields()) {
          ASSERT_FALSE(member.value.items().empty());
          v1::NamedValue* item = call->mutable_gradients()->add_items();
          item->set_name(std::string(member.key));
          Value(member.value.items()[0], absl::StrCat(entry, ".", item->name()),
                item->mutable_value());
        }
        return;
      case EntryKind::kModule:
        call->set_kind(IsBackwardEntry(entry) ? v1::CALL_KIND_MODULE_BACKWARD
                                              : v1::CALL_KIND_MODULE_FORWARD);
        break;
      default:
        call->set_kind(IsBackwardEntry(entry) ? v1::CALL_KIND_API_BACKWARD
                                              : v1::CALL_KIND_API_FORWARD);
    }
    if (record.Find("input_args") != nullptr)
      List(At(record, "input_args"), entry + ".input",
           call->mutable_input_args());
    if (record.Find("input_kwargs") != nullptr)
      Map(At(record, "input_kwargs"), entry + ".kwargs",
          call->mutable_input_kwargs());
    if (record.Find("input") != nullptr)
      List(At(record, "input"), entry + ".input", call->mutable_input());
    if (record.Find("output") != nullptr)
      List(At(record, "output"), entry + ".output", call->mutable_output());
    if (record.Find("parameters") != nullptr)
      Map(At(record, "parameters"), entry + ".parameters",
          call->mutable_parameters());
  }

 private:
  template <typename F, typename I, typename B>
  static void Stat(const Json& v, F set_float, I set_int, B set_bool) {
    if (v.is_bool()) {
      set_bool(Bool(v));
    } else if (const std::optional<int64_t> number = MaybeInt(v)) {
      set_int(*number);
    } else if (v.is_number()) {
      set_float(v.number);
    }
  }

  static v1::ObjectLeaf* Object(v1::ObjectLeaf::Kind kind, v1::Value* out) {
    out->mutable_object()->set_kind(kind);
    return out->mutable_object();
  }

  static void Scalar(const Json& v, const std::string& type,
                     v1::ScalarValue* out) {
    out->set_type(type);
    const Json& value = At(v, "value");
    if (value.is_bool()) {
      out->set_b(Bool(value));
    } else if (const std::optional<int64_t> number = MaybeInt(value)) {
      out->set_i(*number);
    } else if (value.is_string()) {
      out->set_s(Str(value));
    } else if (value.kind == Json::Kind::kInt) {
      out->set_big_int(std::string(value.text));
    } else if (value.is_number()) {
      out->set_f(value.number);
    }
  }

  Frames* const frames_;
};

void ParseFile(const std::string& path, JsonDocument* document) {
  ASSERT_EQ(document->Parse(ReadTextFile(path)), absl::OkStatus()) << path;
}

}  // namespace

std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void ImportDump(const std::string& directory, int64_t step,
                const std::string& dump_path, Frames* frames) {
  const bool debug = std::filesystem::exists(directory + "/debug.json");
  const bool extra = std::filesystem::exists(directory + "/stack.json");
  const std::string path = directory + (debug ? "/debug.json" : "/dump.json");
  uint64_t order = 0;
  v1::RecordBatch records;
  const auto add = [&] {
    v1::Record* record = records.add_records();
    record->set_order(order++);
    return record;
  };
  v1::StepBegin* begin = add()->mutable_step_begin();
  Importer importer(frames);
  uint64_t phases = 0;
  DumpHead head;
  const std::string text = ReadTextFile(path);
  JsonStream stream(text);
  JsonDocument record;
  std::string scratch;
  ASSERT_EQ(
      WalkDump(&stream, &head,
               [&](const std::string& name) -> absl::Status {
                 RP_ASSIGN_OR_RETURN(const absl::string_view value,
                                     stream.ReadValue(text.size(), &scratch));
                 RP_RETURN_IF_ERROR(record.ParseView(value));
                 importer.Entry(name, record.root(), add()->mutable_call());
                 ++phases;
                 return absl::OkStatus();
               }),
      absl::OkStatus())
      << path;
  begin->set_task(head.task.value_or(""));
  begin->set_level(head.level.value_or(""));
  begin->set_framework(head.framework.value_or(""));
  begin->set_dump_path(dump_path);
  begin->set_has_payloads(head.dump_data_dir.has_value());
  begin->set_extra_info(extra);
  if (extra) {
    JsonDocument stack, construct;
    ParseFile(directory + "/stack.json", &stack);
    uint32_t id = 0;
    for (const JsonMember& member : stack.root().fields()) {
      v1::StackDef* def = add()->mutable_stack();
      def->set_id(id);
      ASSERT_EQ(member.value.items().size(), 2u);
      for (const Json& frame : member.value.items()[1].items())
        def->add_frames(Str(frame));
      for (const Json& entry : member.value.items()[0].items()) {
        v1::StackUse* use = add()->mutable_stack_use();
        use->set_id(id);
        use->set_entry(Str(entry));
      }
      ++id;
    }
    ParseFile(directory + "/construct.json", &construct);
    for (const JsonMember& member : construct.root().fields()) {
      v1::ConstructEdge* edge = add()->mutable_edge();
      edge->set_entry(std::string(member.key));
      if (member.value.is_string()) edge->set_parent(Str(member.value));
    }
  }
  add()->mutable_step_end()->set_call_phases(phases);
  // Payloads were sent first; the records follow in batches.
  for (int at = 0; at < records.records_size();) {
    v1::RecordBatch* batch = frames->AddBatch(step);
    for (int n = 0; n < 100 && at < records.records_size(); ++n)
      batch->add_records()->Swap(records.mutable_records(at++));
  }
}

}  // namespace rankprobe::testing
