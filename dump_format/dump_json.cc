// SPDX-License-Identifier: Apache-2.0
#include "dump_format/dump_json.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/records/entry_names.h"
#include "common/tensor/dtype.h"
#include "common/text/json_check.h"
#include "common/text/json_text.h"
#include "dump_format/npy_writer.h"
#include "dump_format/statistics_json.h"

namespace rankprobe {
namespace {

constexpr int kMaxMeshDepth = 16;
// sys.int_info.default_max_str_digits
constexpr size_t kMaxDigits = 4300;

class DumpWriter {
 public:
  DumpWriter(const HasPayloadFn& has_payload, std::vector<PayloadFile>* files,
             std::vector<PayloadFile>* missing, std::string* out)
      : has_payload_(has_payload),
        files_(files),
        missing_(missing),
        json_(out) {}

  void Document(const StepView& view, const std::string& dump_data_dir) {
    json_.BeginObject();
    json_.Key("task");
    json_.String(view.begin.task());
    json_.Key("level");
    json_.String(view.begin.level());
    json_.Key("framework");
    json_.String(view.begin.framework());
    mindspore_ = IsMindspore(view.begin);
    json_.Key("dump_data_dir");
    if (view.begin.has_payloads()) {
      json_.String(dump_data_dir);
    } else {
      json_.Null();
    }
    stats_ = StatsOf(view.begin);
    WriteExtraStatisticsHead(stats_, &json_);
    json_.Key("data");
    json_.BeginObject();
    for (const v1::CallPhase& call : view.calls) Call(call);
    json_.EndObject();
    json_.EndObject();
  }

 private:
  void Call(const v1::CallPhase& call) {
    entry_ = call.entry();
    json_.Key(call.entry());
    if (call.kind() == v1::CALL_KIND_DEBUG) {
      Value(call.debug(), entry_);
      return;
    }
    json_.BeginObject();
    if (call.kind() == v1::CALL_KIND_PARAMETERS_GRAD) {
      for (const v1::NamedValue& gradient : call.gradients().items()) {
        json_.Key(gradient.name());
        json_.BeginArray();
        Value(gradient.value(), absl::StrCat(entry_, ".", gradient.name()));
        json_.EndArray();
      }
    } else {
      if (call.has_input_args()) List("input_args", "input", call.input_args());
      if (call.has_input_kwargs())
        Map("input_kwargs", "kwargs", call.input_kwargs());
      if (call.has_input()) List("input", "input", call.input());
      if (call.has_output()) List("output", "output", call.output());
      if (call.has_parameters())
        Map("parameters", "parameters", call.parameters());
    }
    json_.EndObject();
  }

  void List(absl::string_view key, absl::string_view category,
            const v1::ValueList& list) {
    json_.Key(key);
    Items(list, absl::StrCat(entry_, ".", category));
  }

  void Map(absl::string_view key, absl::string_view category,
           const v1::ValueMap& map) {
    json_.Key(key);
    Members(map, absl::StrCat(entry_, ".", category));
  }

  void Items(const v1::ValueList& list, const std::string& path) {
    json_.BeginArray();
    for (int i = 0; i < list.items_size(); ++i)
      Value(list.items(i), absl::StrCat(path, ".", i));
    json_.EndArray();
  }

  void Members(const v1::ValueMap& map, const std::string& path) {
    json_.BeginObject();
    for (const v1::NamedValue& item : map.items()) {
      json_.Key(item.name());
      Value(item.value(), absl::StrCat(path, ".", item.name()));
    }
    json_.EndObject();
  }

  void Value(const v1::Value& value, const std::string& path) {
    switch (value.kind_case()) {
      case v1::Value::kTensor:
        Tensor(value.tensor(), path);
        break;
      case v1::Value::kScalar:
        Scalar(value.scalar());
        break;
      case v1::Value::kObject:
        Object(value.object());
        break;
      case v1::Value::kList:
        Items(value.list(), path);
        break;
      case v1::Value::kMap:
        Members(value.map(), path);
        break;
      case v1::Value::kP2P:
        P2p(value.p2p(), path);
        break;
      case v1::Value::kCut:
        Cut(value.cut());
        break;
      case v1::Value::KIND_NOT_SET:
        json_.Null();
        break;
    }
  }

  void Text(absl::string_view key, absl::string_view value) {
    json_.Key(key);
    json_.String(value);
  }

  // Writes what a limit left out: {"type": .., "value": text, "rankprobe_cut":
  // {..}}.
  void Cut(const v1::CutValue& cut) {
    json_.BeginObject();
    Text("type", cut.type());
    json_.Key("value");
    if (cut.text().empty()) {
      json_.Null();
    } else {
      json_.String(cut.text());
    }
    json_.Key("rankprobe_cut");
    json_.BeginObject();
    Text("limit", cut.limit());
    json_.Key("size");
    json_.Uint(cut.size());
    json_.Key("kept");
    json_.Uint(cut.kept());
    json_.EndObject();
    json_.EndObject();
  }

  void Md5(const v1::Checksum& checksum) {
    json_.Key("md5");
    switch (checksum.value_case()) {
      case v1::Checksum::kCrc32:
        json_.String(absl::StrFormat("%08x", checksum.crc32()));
        break;
      case v1::Checksum::kXor64:
        json_.String(absl::StrFormat("0x%016x", checksum.xor64()));
        break;
      default:
        json_.Null();
    }
  }

  // Leaves of two entries may have one name: output 0 of "A", and the debug
  // entry "A.output.0". The later one gets another name, so that it does not
  // replace the file.
  std::string FreeFileName(const std::string& path,
                           absl::string_view extension) {
    std::string name = EscapeFileName(path, extension);
    // An escaped name never equals that of another path.
    for (int n = 2; !names_.insert(name).second; ++n)
      name = EscapeFileName(absl::StrCat(path, "%", n), extension);
    return name;
  }

  void DataName(const v1::TensorSummary& tensor, const std::string& path) {
    const bool named = tensor.name_without_payload();
    if (!named && !tensor.has_payload()) return;
    const bool npy = mindspore_ || NumpyTextElementBytes(tensor).has_value();
    const std::string file_name = FreeFileName(path, npy ? ".npy" : ".pt");
    if (named) Text("data_name", file_name);
    if (!tensor.has_payload()) return;
    const bool there = tensor.payload().lost() == v1::LOSS_REASON_UNSPECIFIED &&
                       has_payload_(tensor);
    (there ? files_ : missing_)->push_back({file_name, entry_, &tensor});
    if (there && !named) Text("data_name", file_name);
  }

  // The order of keys depends on the mode: with statistics the checksum comes
  // last; in xor and bench mode it precedes requires_grad or data_name.
  void Tensor(const v1::TensorSummary& tensor, const std::string& path) {
    json_.BeginObject();
    Text("type", tensor.numpy()           ? "numpy.ndarray"
                 : !tensor.type().empty() ? tensor.type()
                 : mindspore_             ? "mindspore.Tensor"
                                          : "torch.Tensor");
    Text("dtype", tensor.numpy() ? tensor.numpy_dtype()
                  : tensor.dtype() == v1::DTYPE_UNSPECIFIED
                      ? absl::string_view(tensor.dtype_name())
                  : mindspore_ ? MindsporeDtypeName(tensor.dtype())
                               : TorchDtypeName(tensor.dtype()));
    json_.Key("shape");
    json_.BeginArray();
    for (const int64_t size : tensor.shape()) json_.Int(size);
    json_.EndArray();
    const bool xor_mode = !tensor.has_stats() && tensor.has_checksum();
    if (xor_mode) Md5(tensor.checksum());
    if (!xor_mode) WriteStatistics(tensor, stats_, &json_);
    if (!tensor.numpy() && !mindspore_) {
      json_.Key("requires_grad");
      json_.Bool(tensor.requires_grad());
    }
    if (!tensor.device_mesh_json().empty()) DistributedTensor(tensor);
    if (tensor.name_without_payload()) {
      if (!xor_mode && tensor.has_checksum()) Md5(tensor.checksum());
      DataName(tensor, path);
    } else {
      DataName(tensor, path);
      if (!xor_mode && tensor.has_checksum()) Md5(tensor.checksum());
    }
    json_.EndObject();
  }

  void DistributedTensor(const v1::TensorSummary& tensor) {
    json_.Key("device_mesh");
    // Old archives have texts that were never checked.
    if (IsJsonText(tensor.device_mesh_json(), kMaxMeshDepth)) {
      json_.Raw(tensor.device_mesh_json());
    } else {
      json_.String(tensor.device_mesh_json());
    }
    json_.Key("placements");
    json_.BeginArray();
    for (const v1::Placement& placement : tensor.placements()) {
      // As in msprobe, which does not recognize it as a shard;
      // tensor_notes.json has it.
      if (placement.kind() == v1::Placement::KIND_STRIDED_SHARD) continue;
      json_.BeginObject();
      switch (placement.kind()) {
        case v1::Placement::KIND_SHARD:
          json_.Key("Shard");
          json_.BeginObject();
          json_.Key("dim");
          json_.Uint(placement.dim());
          json_.EndObject();
          break;
        case v1::Placement::KIND_PARTIAL:
          json_.Key("Partial");
          json_.BeginObject();
          Text("reduce_op", placement.reduce_op());
          json_.EndObject();
          break;
        default:
          json_.Key("Replicate");
          json_.BeginObject();
          json_.EndObject();
      }
      json_.EndObject();
    }
    json_.EndArray();
  }

  void Scalar(const v1::ScalarValue& scalar) {
    json_.BeginObject();
    Text("type", scalar.type());
    json_.Key("value");
    switch (scalar.value_case()) {
      case v1::ScalarValue::kI:
        json_.Int(scalar.i());
        break;
      case v1::ScalarValue::kF:
        json_.Float(scalar.f());
        break;
      case v1::ScalarValue::kB:
        json_.Bool(scalar.b());
        break;
      case v1::ScalarValue::kS:
        json_.String(scalar.s());
        break;
      case v1::ScalarValue::kBigInt:
        BigInt(scalar.big_int());
        break;
      case v1::ScalarValue::VALUE_NOT_SET:
        json_.Null();
    }
    json_.EndObject();
  }

  // The digits are not trusted: anything but an integer is written as text, and
  // so is one that Python's json would refuse to read.
  void BigInt(const std::string& digits) {
    const size_t start = !digits.empty() && digits[0] == '-' ? 1 : 0;
    const size_t count = digits.size() - start;
    if (count > 0 && count <= kMaxDigits &&
        (digits[start] != '0' || count == 1) &&
        digits.find_first_not_of("0123456789", start) == std::string::npos) {
      json_.Raw(digits);
    } else {
      json_.String(digits);
    }
  }

  void Ints(const v1::ObjectLeaf& object) {
    json_.BeginArray();
    for (int i = 0; i < object.ints_size(); ++i) {
      if (object.kind() == v1::ObjectLeaf::KIND_SLICE && i < 32 &&
          (object.null_mask() >> i & 1) != 0) {
        json_.Null();
      } else {
        json_.Int(object.ints(i));
      }
    }
    json_.EndArray();
  }

  void Object(const v1::ObjectLeaf& object) {
    using Leaf = v1::ObjectLeaf;
    if (object.kind() == Leaf::KIND_BARE_TEXT)
      return json_.String(object.text());
    if (object.kind() == Leaf::KIND_BARE_INT)
      return json_.Int(object.ints_size() > 0 ? object.ints(0) : 0);
    json_.BeginObject();
    switch (object.kind()) {
      case Leaf::KIND_SLICE:
        Text("type", "slice");
        json_.Key("value");
        Ints(object);
        break;
      case Leaf::KIND_ELLIPSIS:
        Text("type", "ellipsis");
        Text("value", "...");
        break;
      case Leaf::KIND_TORCH_SIZE:
        Text("type", "torch.Size");
        json_.Key("value");
        Ints(object);
        break;
      case Leaf::KIND_MEMORY_FORMAT:
        Text("type", "torch.memory_format");
        Text("format", object.text());
        break;
      case Leaf::KIND_DTYPE:
        Text("type", mindspore_ ? "mindspore.dtype" : "torch.dtype");
        Text("value", object.text());
        break;
      case Leaf::KIND_DEVICE:
        Text("type", "torch.device");
        Text("value", object.text());
        break;
      case Leaf::KIND_PROCESS_GROUP:
        Text("type",
             mindspore_ ? "mindspore.ProcessGroup" : "torch.ProcessGroup");
        json_.Key("group_ranks");
        Ints(object);
        Text("group_id", object.text());
        break;
      case Leaf::KIND_REDUCE_OP:
        Text("type", "torch.distributed.ReduceOp");
        Text("value", object.text());
        break;
      default:
        break;
    }
    json_.EndObject();
  }

  void P2p(const v1::P2pOp& op, const std::string& path) {
    json_.BeginObject();
    Text("class_type", mindspore_ ? "mindspore.mint.distributed.P2POp"
                                  : "torch.distributed.P2POp");
    json_.Key("tensor");
    if (op.has_tensor()) {
      Tensor(op.tensor(), path);
    } else {
      json_.Null();
    }
    Text("op", op.op());
    json_.Key("peer");
    json_.Int(op.peer());
    json_.Key("tag");
    json_.Int(op.tag());
    Text("group_id", op.group_id());
    json_.EndObject();
  }

  const HasPayloadFn& has_payload_;
  std::vector<PayloadFile>* const files_;
  std::vector<PayloadFile>* const missing_;
  JsonTextWriter json_;
  StatSet stats_;
  bool mindspore_ = false;
  std::string entry_;
  // Names of the payload files so far.
  absl::flat_hash_set<std::string> names_;
};

}  // namespace

std::string DumpJson(const StepView& view, const std::string& dump_data_dir,
                     const HasPayloadFn& has_payload,
                     std::vector<PayloadFile>* files,
                     std::vector<PayloadFile>* missing) {
  std::string out;
  DumpWriter(has_payload, files, missing, &out).Document(view, dump_data_dir);
  return out;
}

}  // namespace rankprobe
