// SPDX-License-Identifier: Apache-2.0
#include "dump_format/pickle_tensor.h"

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/little_endian.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxStack = 4096;
constexpr int kMaxSteps = 100000;
constexpr size_t kMaxRank = 64;

struct Item;
using ItemPtr = std::shared_ptr<const Item>;

struct Item {
  enum class Kind {
    kMark,
    kNone,
    kBool,
    kInt,
    kText,
    kTuple,
    kGlobal,
    kDict,
    kStorage,
    kTensor,
  };
  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string text;
  std::vector<ItemPtr> items;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;  // of a storage; unset if untyped
  PickledTensor tensor;
};

ItemPtr Make(Item::Kind kind) {
  auto item = std::make_shared<Item>();
  item->kind = kind;
  return item;
}

v1::DType DtypeOfStorage(absl::string_view name) {
  for (int value = v1::DType_MIN; value <= v1::DType_MAX; ++value) {
    // Does not use the generated code: the Python modules of agent and analysis
    // live in one process, which may register it only once.
    const auto dtype = static_cast<v1::DType>(value);
    if (!TorchStorageClass(dtype).empty() && TorchStorageClass(dtype) == name) {
      return dtype;
    }
  }
  return v1::DTYPE_UNSPECIFIED;
}

bool IsKnownGlobal(absl::string_view name) {
  if (name == "collections OrderedDict" ||
      name == "torch._utils _rebuild_tensor_v2" ||
      name == "torch._utils _rebuild_tensor_v3" ||
      name == "torch._utils _rebuild_parameter" ||
      name == "torch.storage UntypedStorage") {
    return true;
  }
  if (!absl::ConsumePrefix(&name, "torch ")) return false;
  return DtypeOfStorage(name) != v1::DTYPE_UNSPECIFIED ||
         ParseDtype(name) != v1::DTYPE_UNSPECIFIED;
}

class Machine {
 public:
  explicit Machine(absl::string_view pickle) : in_(pickle) {}

  absl::StatusOr<PickledTensor> Run() {
    for (int step = 0; step < kMaxSteps; ++step) {
      if (in_.empty()) return Bad("ends too early");
      if (stack_.size() > kMaxStack) return Bad("needs too deep a stack");
      const auto op = static_cast<unsigned char>(in_[0]);
      in_.remove_prefix(1);
      if (op == '.') {
        if (stack_.size() != 1 || stack_[0]->kind != Item::Kind::kTensor) {
          return Bad("does not hold one tensor");
        }
        return stack_[0]->tensor;
      }
      RP_RETURN_IF_ERROR(Step(op));
    }
    return Bad("is too long for a tensor");
  }

 private:
  static absl::Status Bad(absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("its pickle ", what));
  }
  template <typename T>
  bool Fixed(T* out) {
    if (in_.size() < sizeof(T)) return false;
    std::memcpy(out, in_.data(), sizeof(T));
    in_.remove_prefix(sizeof(T));
    return true;
  }
  bool Line(std::string* out) {
    const size_t end = in_.find('\n');
    if (end == absl::string_view::npos || end > 256) return false;
    *out = std::string(in_.substr(0, end));
    in_.remove_prefix(end + 1);
    return true;
  }
  absl::Status Text(uint64_t length) {
    if (length > in_.size()) return Bad("ends too early");
    auto item = std::make_shared<Item>();
    item->kind = Item::Kind::kText;
    item->text = std::string(in_.substr(0, length));
    in_.remove_prefix(length);
    stack_.push_back(std::move(item));
    return absl::OkStatus();
  }
  void PushInt(int64_t value) {
    auto item = std::make_shared<Item>();
    item->kind = Item::Kind::kInt;
    item->number = value;
    stack_.push_back(std::move(item));
  }
  absl::StatusOr<ItemPtr> Pop() {
    if (stack_.empty()) return Bad("is malformed");
    ItemPtr item = std::move(stack_.back());
    stack_.pop_back();
    return item;
  }
  absl::Status Tuple(size_t count) {
    if (stack_.size() < count) return Bad("is malformed");
    auto item = std::make_shared<Item>();
    item->kind = Item::Kind::kTuple;
    item->items.assign(stack_.end() - static_cast<ptrdiff_t>(count),
                       stack_.end());
    stack_.resize(stack_.size() - count);
    stack_.push_back(std::move(item));
    return absl::OkStatus();
  }
  absl::Status Global(const std::string& module, const std::string& name) {
    const std::string full = absl::StrCat(module, " ", name);
    if (!IsKnownGlobal(full)) {
      return Bad(absl::StrCat("asks for ", module, ".", name,
                              ", which is not part of a tensor; refused"));
    }
    auto item = std::make_shared<Item>();
    item->kind = Item::Kind::kGlobal;
    item->text = full;
    stack_.push_back(std::move(item));
    return absl::OkStatus();
  }
  absl::Status Get(uint64_t index) {
    const auto it = memo_.find(index);
    if (it == memo_.end()) return Bad("is malformed");
    stack_.push_back(it->second);
    return absl::OkStatus();
  }
  absl::Status Put(uint64_t index) {
    if (stack_.empty()) return Bad("is malformed");
    memo_[index] = stack_.back();
    return absl::OkStatus();
  }

  absl::Status Step(unsigned char op) {
    uint8_t byte = 0;
    uint16_t two = 0;
    int32_t four = 0;
    uint32_t length = 0;
    uint64_t eight = 0;
    switch (op) {
      case 0x80:  // PROTO
        return Fixed(&byte) && byte <= 5 ? absl::OkStatus()
                                         : Bad("is malformed");
      case 0x95:  // FRAME
        return Fixed(&eight) ? absl::OkStatus() : Bad("ends too early");
      case 'c': {
        std::string module;
        std::string name;
        if (!Line(&module) || !Line(&name)) return Bad("is malformed");
        return Global(module, name);
      }
      case 0x93: {  // STACK_GLOBAL
        RP_ASSIGN_OR_RETURN(const ItemPtr name, Pop());
        RP_ASSIGN_OR_RETURN(const ItemPtr module, Pop());
        if (name->kind != Item::Kind::kText ||
            module->kind != Item::Kind::kText) {
          return Bad("is malformed");
        }
        return Global(module->text, name->text);
      }
      case '(':
        stack_.push_back(Make(Item::Kind::kMark));
        return absl::OkStatus();
      case 'X':
        return Fixed(&length) ? Text(length) : Bad("ends too early");
      case 0x8c:
        return Fixed(&byte) ? Text(byte) : Bad("ends too early");
      case 'J':
        if (!Fixed(&four)) return Bad("ends too early");
        PushInt(four);
        return absl::OkStatus();
      case 'K':
        if (!Fixed(&byte)) return Bad("ends too early");
        PushInt(byte);
        return absl::OkStatus();
      case 'M':
        if (!Fixed(&two)) return Bad("ends too early");
        PushInt(two);
        return absl::OkStatus();
      case 0x8a: {  // LONG1
        if (!Fixed(&byte) || byte > 8 || in_.size() < byte) {
          return Bad("has a number that is too large");
        }
        uint64_t value = GetLittleEndian(in_.substr(0, byte));
        if (byte > 0 && byte < 8 && (in_[byte - 1] & 0x80) != 0) {
          value |= ~uint64_t{0} << (8 * byte);
        }
        in_.remove_prefix(byte);
        PushInt(static_cast<int64_t>(value));
        return absl::OkStatus();
      }
      case 't': {
        size_t count = 0;
        while (count < stack_.size() &&
               stack_[stack_.size() - 1 - count]->kind != Item::Kind::kMark) {
          ++count;
        }
        if (count == stack_.size()) return Bad("is malformed");
        RP_RETURN_IF_ERROR(Tuple(count));
        stack_.erase(stack_.end() - 2);
        return absl::OkStatus();
      }
      case ')':
        return Tuple(0);
      case 0x85:
        return Tuple(1);
      case 0x86:
        return Tuple(2);
      case 0x87:
        return Tuple(3);
      case '}':
        stack_.push_back(Make(Item::Kind::kDict));
        return absl::OkStatus();
      case 'N':
        stack_.push_back(Make(Item::Kind::kNone));
        return absl::OkStatus();
      case 0x88:
      case 0x89:
        stack_.push_back(Make(Item::Kind::kBool));
        return absl::OkStatus();
      case 'Q':
        return PersistentId();
      case 'R':
        return Reduce();
      case 'q':
        return Fixed(&byte) ? Put(byte) : Bad("ends too early");
      case 'r':
        return Fixed(&length) ? Put(length) : Bad("ends too early");
      case 0x94:
        return Put(memo_.size());
      case 'h':
        return Fixed(&byte) ? Get(byte) : Bad("ends too early");
      case 'j':
        return Fixed(&length) ? Get(length) : Bad("ends too early");
      default:
        return Bad(absl::StrCat("has instruction ", static_cast<int>(op),
                                ", which no tensor needs; refused"));
    }
  }

  // ('storage', class, key, device, elements)
  absl::Status PersistentId() {
    RP_ASSIGN_OR_RETURN(const ItemPtr id, Pop());
    if (id->kind != Item::Kind::kTuple || id->items.size() != 5 ||
        id->items[0]->text != "storage" ||
        id->items[1]->kind != Item::Kind::kGlobal ||
        id->items[2]->kind != Item::Kind::kText) {
      return Bad("refers to something that is not a storage");
    }
    auto storage = std::make_shared<Item>();
    storage->kind = Item::Kind::kStorage;
    storage->text = id->items[2]->text;
    absl::string_view type = id->items[1]->text;
    if (absl::ConsumePrefix(&type, "torch ")) {
      storage->dtype = DtypeOfStorage(type);
    } else if (type != "torch.storage UntypedStorage") {
      return Bad("refers to something that is not a storage");
    }
    stack_.push_back(std::move(storage));
    return absl::OkStatus();
  }

  static bool Sizes(const Item& item, std::vector<int64_t>* out) {
    if (item.kind != Item::Kind::kTuple || item.items.size() > kMaxRank) {
      return false;
    }
    for (const ItemPtr& size : item.items) {
      if (size->kind != Item::Kind::kInt || size->number < 0) return false;
      out->push_back(size->number);
    }
    return true;
  }

  absl::Status Reduce() {
    RP_ASSIGN_OR_RETURN(const ItemPtr arguments, Pop());
    RP_ASSIGN_OR_RETURN(const ItemPtr function, Pop());
    if (function->kind != Item::Kind::kGlobal ||
        arguments->kind != Item::Kind::kTuple) {
      return Bad("calls something that is not part of a tensor; refused");
    }
    const std::vector<ItemPtr>& args = arguments->items;
    const absl::string_view name = function->text;
    if (name == "collections OrderedDict" && args.empty()) {
      stack_.push_back(Make(Item::Kind::kDict));
      return absl::OkStatus();
    }
    if (name == "torch._utils _rebuild_parameter" && !args.empty() &&
        args[0]->kind == Item::Kind::kTensor) {
      stack_.push_back(args[0]);
      return absl::OkStatus();
    }
    const bool v2 = name == "torch._utils _rebuild_tensor_v2";
    const bool v3 = name == "torch._utils _rebuild_tensor_v3";
    if ((!v2 && !v3) || args.size() < (v3 ? 7 : 6) ||
        args[0]->kind != Item::Kind::kStorage ||
        args[1]->kind != Item::Kind::kInt || args[1]->number < 0) {
      return Bad("calls something that is not part of a tensor; refused");
    }
    auto tensor = std::make_shared<Item>();
    tensor->kind = Item::Kind::kTensor;
    PickledTensor& out = tensor->tensor;
    out.storage_key = args[0]->text;
    out.dtype = args[0]->dtype;
    out.offset = args[1]->number;
    if (!Sizes(*args[2], &out.shape) || !Sizes(*args[3], &out.stride) ||
        out.shape.size() != out.stride.size()) {
      return Bad("has a bad shape");
    }
    if (v3) {
      absl::string_view dtype = args[6]->text;
      if (args[6]->kind != Item::Kind::kGlobal ||
          !absl::ConsumePrefix(&dtype, "torch ")) {
        return Bad("has a bad dtype");
      }
      out.dtype = ParseDtype(dtype);
    }
    if (out.dtype == v1::DTYPE_UNSPECIFIED) return Bad("has a bad dtype");
    stack_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::string_view in_;
  std::vector<ItemPtr> stack_;
  std::map<uint64_t, ItemPtr> memo_;
};

}  // namespace

absl::StatusOr<PickledTensor> ParseTensorPickle(absl::string_view pickle) {
  return Machine(pickle).Run();
}

}  // namespace rankprobe
