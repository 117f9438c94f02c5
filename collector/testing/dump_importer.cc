#include "collector/testing/dump_importer.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/records/entry_names.h"
#include "common/tensor/dtype.h"
#include "rapidjson/document.h"

namespace rankprobe::testing {
namespace {

using Json = rapidjson::Value;

std::string Str(const Json& v) { return {v.GetString(), v.GetStringLength()}; }

class Importer {
 public:
  explicit Importer(Frames* frames) : frames_(frames) {}

  void Tensor(const Json& leaf, const std::string& name,
              v1::TensorSummary* out) {
    const std::string type = Str(leaf["type"]);
    if (type == "numpy.ndarray") {
      out->set_numpy(true);
      out->set_numpy_dtype(Str(leaf["dtype"]));
      out->set_dtype(ParseDtype(Str(leaf["dtype"])));
    } else {
      if (type != "torch.Tensor") out->set_type(type);
      out->set_dtype(ParseDtype(Str(leaf["dtype"])));
      out->set_requires_grad(leaf["requires_grad"].GetBool());
    }
    uint64_t bytes = ElementSize(out->dtype());
    for (const Json& size : leaf["shape"].GetArray()) {
      out->add_shape(size.GetInt64());
      bytes *= static_cast<uint64_t>(size.GetInt64());
    }
    if (leaf.HasMember("Max")) {
      v1::TensorStats& s = *out->mutable_stats();
      Stat(
          leaf["Max"], [&](double v) { s.set_max_f(v); },
          [&](int64_t v) { s.set_max_i(v); }, [&](bool v) { s.set_max_b(v); });
      Stat(
          leaf["Min"], [&](double v) { s.set_min_f(v); },
          [&](int64_t v) { s.set_min_i(v); }, [&](bool v) { s.set_min_b(v); });
      Stat(
          leaf["Mean"], [&](double v) { s.set_mean_f(v); },
          [&](int64_t v) { s.set_mean_i(v); }, [](bool) {});
      Stat(
          leaf["Norm"], [&](double v) { s.set_norm_f(v); },
          [&](int64_t v) { s.set_norm_i(v); }, [](bool) {});
    }
    if (leaf.HasMember("md5")) {
      if (leaf["md5"].IsNull()) {
        out->mutable_checksum()->set_null(true);
      } else {
        const std::string text = Str(leaf["md5"]);
        if (absl::StartsWith(text, "0x")) {
          out->mutable_checksum()->set_xor64(std::stoull(text, nullptr, 16));
        } else {
          out->mutable_checksum()->set_crc32(
              static_cast<uint32_t>(std::stoul(text, nullptr, 16)));
        }
      }
    }
    if (leaf.HasMember("data_name")) {
      EXPECT_EQ(Str(leaf["data_name"]), name + ".pt");
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
    if (v.IsNull()) return;
    if (v.IsArray()) {
      out->mutable_list();
      for (rapidjson::SizeType i = 0; i < v.Size(); ++i) {
        Value(v[i], absl::StrCat(name, ".", i),
              out->mutable_list()->add_items());
      }
      return;
    }
    if (v.IsString())
      return Object(Leaf::KIND_BARE_TEXT, out)->set_text(Str(v));
    if (v.IsInt64())
      return Object(Leaf::KIND_BARE_INT, out)->add_ints(v.GetInt64());
    if (!v.HasMember("type") || !v["type"].IsString()) {
      if (v.MemberCount() == 0 && absl::StrContains(name, "weird_empty"))
        Object(Leaf::KIND_EMPTY_OBJECT, out);
      return Map(v, name, out->mutable_map());
    }
    const std::string type = Str(v["type"]);
    if (v.HasMember("shape")) return Tensor(v, name, out->mutable_tensor());
    if (type == "slice") {
      Leaf* leaf = Object(Leaf::KIND_SLICE, out);
      for (rapidjson::SizeType i = 0; i < 3; ++i) {
        const Json& part = v["value"][i];
        if (part.IsNull()) leaf->set_null_mask(leaf->null_mask() | 1u << i);
        leaf->add_ints(part.IsNull() ? 0 : part.GetInt64());
      }
    } else if (type == "ellipsis") {
      Object(Leaf::KIND_ELLIPSIS, out);
    } else if (type == "torch.Size") {
      Leaf* leaf = Object(Leaf::KIND_TORCH_SIZE, out);
      for (const Json& size : v["value"].GetArray())
        leaf->add_ints(size.GetInt64());
    } else if (type == "torch.memory_format") {
      Object(Leaf::KIND_MEMORY_FORMAT, out)->set_text(Str(v["format"]));
    } else if (type == "torch.dtype") {
      Object(Leaf::KIND_DTYPE, out)->set_text(Str(v["value"]));
    } else if (type == "torch.device") {
      Object(Leaf::KIND_DEVICE, out)->set_text(Str(v["value"]));
    } else if (type == "torch.distributed.ReduceOp") {
      Object(Leaf::KIND_REDUCE_OP, out)->set_text(Str(v["value"]));
    } else if (type == "torch.ProcessGroup") {
      Leaf* leaf = Object(Leaf::KIND_PROCESS_GROUP, out);
      for (const Json& rank : v["group_ranks"].GetArray())
        leaf->add_ints(rank.GetInt64());
      leaf->set_text(Str(v["group_id"]));
    } else {
      Scalar(v, type, out->mutable_scalar());
    }
  }

  void Map(const Json& v, const std::string& name, v1::ValueMap* out) {
    for (const auto& member : v.GetObject()) {
      v1::NamedValue* item = out->add_items();
      item->set_name(Str(member.name));
      Value(member.value, absl::StrCat(name, ".", item->name()),
            item->mutable_value());
    }
  }

  void List(const Json& v, const std::string& name, v1::ValueList* out) {
    for (rapidjson::SizeType i = 0; i < v.Size(); ++i)
      Value(v[i], absl::StrCat(name, ".", i), out->add_items());
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
        for (const auto& member : record.GetObject()) {
          v1::NamedValue* item = call->mutable_gradients()->add_items();
          item->set_name(Str(member.name));
          Value(member.value[0], absl::StrCat(entry, ".", item->name()),
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
    if (record.HasMember("input_args"))
      List(record["input_args"], entry + ".input", call->mutable_input_args());
    if (record.HasMember("input_kwargs"))
      Map(record["input_kwargs"], entry + ".kwargs",
          call->mutable_input_kwargs());
    if (record.HasMember("input"))
      List(record["input"], entry + ".input", call->mutable_input());
    if (record.HasMember("output"))
      List(record["output"], entry + ".output", call->mutable_output());
    if (record.HasMember("parameters"))
      Map(record["parameters"], entry + ".parameters",
          call->mutable_parameters());
  }

 private:
  template <typename F, typename I, typename B>
  static void Stat(const Json& v, F set_float, I set_int, B set_bool) {
    if (v.IsBool()) {
      set_bool(v.GetBool());
    } else if (v.IsInt64()) {
      set_int(v.GetInt64());
    } else if (v.IsDouble()) {
      set_float(v.GetDouble());
    }
  }

  static v1::ObjectLeaf* Object(v1::ObjectLeaf::Kind kind, v1::Value* out) {
    out->mutable_object()->set_kind(kind);
    return out->mutable_object();
  }

  static void Scalar(const Json& v, const std::string& type,
                     v1::ScalarValue* out) {
    out->set_type(type);
    const Json& value = v["value"];
    if (value.IsBool()) {
      out->set_b(value.GetBool());
    } else if (value.IsInt64()) {
      out->set_i(value.GetInt64());
    } else if (value.IsString()) {
      out->set_s(Str(value));
    } else if (value.IsDouble() && type == "int") {
      std::array<char, 400> digits{};
      std::snprintf(digits.data(), digits.size(), "%.0f", value.GetDouble());
      out->set_big_int(digits.data());
    } else if (value.IsDouble()) {
      out->set_f(value.GetDouble());
    }
  }

  Frames* const frames_;
};

void ParseFile(const std::string& path, rapidjson::Document* document) {
  const std::string text = ReadTextFile(path);
  document->Parse<rapidjson::kParseNanAndInfFlag |
                  rapidjson::kParseFullPrecisionFlag>(text.c_str(),
                                                      text.size());
  ASSERT_FALSE(document->HasParseError()) << path;
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
  rapidjson::Document dump, stack, construct;
  ParseFile(directory + (debug ? "/debug.json" : "/dump.json"), &dump);
  uint64_t order = 0;
  v1::RecordBatch records;
  const auto add = [&] {
    v1::Record* record = records.add_records();
    record->set_order(order++);
    return record;
  };
  v1::StepBegin* begin = add()->mutable_step_begin();
  begin->set_task(Str(dump["task"]));
  begin->set_level(Str(dump["level"]));
  begin->set_framework(Str(dump["framework"]));
  begin->set_dump_path(dump_path);
  begin->set_has_payloads(dump["dump_data_dir"].IsString());
  begin->set_extra_info(extra);
  Importer importer(frames);
  uint64_t phases = 0;
  for (const auto& member : dump["data"].GetObject()) {
    importer.Entry(Str(member.name), member.value, add()->mutable_call());
    ++phases;
  }
  if (extra) {
    ParseFile(directory + "/stack.json", &stack);
    uint32_t id = 0;
    for (const auto& member : stack.GetObject()) {
      v1::StackDef* def = add()->mutable_stack();
      def->set_id(id);
      for (const Json& frame : member.value[1].GetArray())
        def->add_frames(Str(frame));
      for (const Json& entry : member.value[0].GetArray()) {
        v1::StackUse* use = add()->mutable_stack_use();
        use->set_id(id);
        use->set_entry(Str(entry));
      }
      ++id;
    }
    ParseFile(directory + "/construct.json", &construct);
    for (const auto& member : construct.GetObject()) {
      v1::ConstructEdge* edge = add()->mutable_edge();
      edge->set_entry(Str(member.name));
      if (member.value.IsString()) edge->set_parent(Str(member.value));
    }
  }
  add()->mutable_step_end()->set_call_phases(phases);
  // Payloads went first; the records follow in batches.
  for (int at = 0; at < records.records_size();) {
    v1::RecordBatch* batch = frames->AddBatch(step);
    for (int n = 0; n < 100 && at < records.records_size(); ++n)
      batch->add_records()->Swap(records.mutable_records(at++));
  }
}

}  // namespace rankprobe::testing
