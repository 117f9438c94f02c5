// SPDX-License-Identifier: Apache-2.0
#include "dump_format/pt_writer.h"

#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/little_endian.h"
#include "common/tensor/dtype.h"
#include "common/tensor/kernels/crc32.h"

namespace rankprobe {
namespace {

constexpr uint16_t kFlags = 0x0808;  // UTF-8 names, sizes in a data descriptor
constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();
// PyTorch maps storages into memory and requires alignment.
constexpr size_t kStorageAlignment = 64;
constexpr uint16_t kDosDate = (1 << 5) | 1;  // 1 January 1980

template <typename T>
void Put(T value, std::string* out) {
  AppendLittleEndian(static_cast<std::make_unsigned_t<T>>(value), out);
}

uint32_t Crc(absl::string_view data) {
  return kernels::Crc32(0, data.data(), data.size());
}

// Pickle of an integer >= 0.
void PickleInt(int64_t v, std::string* out) {
  if (v < 256) {
    out->push_back('K');
    Put(static_cast<uint8_t>(v), out);
  } else if (v < 65536) {
    out->push_back('M');
    Put(static_cast<uint16_t>(v), out);
  } else if (v <= std::numeric_limits<int32_t>::max()) {
    out->push_back('J');
    Put(static_cast<uint32_t>(v), out);
  } else {
    out->append("\x8a\x08");
    Put(static_cast<uint64_t>(v), out);
  }
}

void PickleText(absl::string_view text, std::string* out) {
  out->push_back('X');
  Put(static_cast<uint32_t>(text.size()), out);
  out->append(text.data(), text.size());
}

void PickleTuple(absl::Span<const int64_t> values, std::string* out) {
  out->push_back('(');
  for (const int64_t v : values) PickleInt(v, out);
  out->push_back('t');
}

// The protocol-2 pickle that torch.save writes for a plain tensor.
std::string TensorPickle(v1::DType dtype, absl::Span<const int64_t> shape,
                         uint64_t bytes) {
  const absl::string_view storage = TorchStorageClass(dtype);
  const bool legacy = !storage.empty();
  std::string out = "\x80\x02";
  absl::StrAppend(&out, "ctorch._utils\n",
                  legacy ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3", "\n((");
  PickleText("storage", &out);
  absl::StrAppend(&out, legacy ? absl::StrCat("ctorch\n", storage, "\n")
                               : "ctorch.storage\nUntypedStorage\n");
  PickleText("0", &out);
  PickleText("cpu", &out);
  PickleInt(static_cast<int64_t>(legacy ? bytes / ElementSize(dtype) : bytes),
            &out);
  out.append("tQK");
  out.push_back('\0');  // storage offset
  PickleTuple(shape, &out);
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d] > 0 ? shape[d] : 1;
  }
  PickleTuple(strides, &out);
  out.append(
      "\x89"
      "ccollections\nOrderedDict\n)R");
  if (!legacy)
    absl::StrAppend(&out, "ctorch\n",
                    absl::StripPrefix(TorchDtypeName(dtype), "torch."), "\n");
  out.append("tR.");
  return out;
}

}  // namespace

PtWriter::PtWriter(absl::string_view archive_name, v1::DType dtype,
                   absl::Span<const int64_t> shape, uint64_t data_bytes)
    : root_(archive_name), data_bytes_(data_bytes) {
  AddSmallMember("/data.pkl", TensorPickle(dtype, shape, data_bytes));
  AddSmallMember("/byteorder", "little");
  AddSmallMember("/version", "3\n");
  Member data;
  data.name = root_ + "/data/0";
  data.header_offset = prefix_.size();
  data.size = data_bytes;
  // Local header; its extra field has the padding, and 64-bit sizes if they are
  // needed.
  const bool big = data_bytes >= kMax32;
  const size_t fixed =
      prefix_.size() + 30 + data.name.size() + (big ? 20 : 0) + 4;
  const size_t padding =
      (kStorageAlignment - fixed % kStorageAlignment) % kStorageAlignment;
  Put<uint32_t>(0x04034b50, &prefix_);
  Put<uint16_t>(big ? 45 : 20, &prefix_);
  Put<uint16_t>(kFlags, &prefix_);
  Put<uint16_t>(0, &prefix_);  // stored
  Put<uint16_t>(0, &prefix_);
  Put<uint16_t>(kDosDate, &prefix_);
  Put<uint32_t>(0, &prefix_);
  Put<uint32_t>(big ? kMax32 : 0, &prefix_);
  Put<uint32_t>(big ? kMax32 : 0, &prefix_);
  Put<uint16_t>(data.name.size(), &prefix_);
  Put<uint16_t>(4 + padding + (big ? 20 : 0), &prefix_);
  prefix_ += data.name;
  if (big) {
    Put<uint16_t>(1, &prefix_);
    Put<uint16_t>(16, &prefix_);
    Put<uint64_t>(0, &prefix_);
    Put<uint64_t>(0, &prefix_);
  }
  prefix_ += "FB";
  Put<uint16_t>(padding, &prefix_);
  prefix_.append(padding, 'Z');
  members_.push_back(std::move(data));
}

void PtWriter::AddSmallMember(absl::string_view name,
                              absl::string_view content) {
  Member member;
  member.name = absl::StrCat(root_, name);
  member.header_offset = prefix_.size();
  member.size = content.size();
  member.crc32 = Crc(content);
  Put<uint32_t>(0x04034b50, &prefix_);
  Put<uint16_t>(20, &prefix_);
  Put<uint16_t>(0x0800, &prefix_);
  Put<uint16_t>(0, &prefix_);
  Put<uint16_t>(0, &prefix_);
  Put<uint16_t>(kDosDate, &prefix_);
  Put<uint32_t>(member.crc32, &prefix_);
  Put<uint32_t>(member.size, &prefix_);
  Put<uint32_t>(member.size, &prefix_);
  Put<uint16_t>(member.name.size(), &prefix_);
  Put<uint16_t>(0, &prefix_);
  prefix_ += member.name;
  absl::StrAppend(&prefix_, content);
  members_.push_back(std::move(member));
}

void PtWriter::AddData(absl::string_view data) {
  crc32_ = kernels::Crc32(crc32_, data.data(), data.size());
}

std::string PtWriter::SuffixWithCrc(uint32_t crc32) const {
  const bool big = data_bytes_ >= kMax32;
  std::string out;
  Put<uint32_t>(0x08074b50, &out);  // data descriptor
  Put<uint32_t>(crc32, &out);
  if (big) {
    Put<uint64_t>(data_bytes_, &out);
    Put<uint64_t>(data_bytes_, &out);
  } else {
    Put<uint32_t>(data_bytes_, &out);
    Put<uint32_t>(data_bytes_, &out);
  }
  const uint64_t directory_offset = prefix_.size() + data_bytes_ + out.size();
  const size_t directory_start = out.size();
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    const bool is_data = i + 1 == members_.size();
    const bool wide = is_data && big;
    Put<uint32_t>(0x02014b50, &out);
    Put<uint16_t>(wide ? 45 : 20, &out);
    Put<uint16_t>(wide ? 45 : 20, &out);
    Put<uint16_t>(is_data ? kFlags : 0x0800, &out);
    Put<uint16_t>(0, &out);
    Put<uint16_t>(0, &out);
    Put<uint16_t>(kDosDate, &out);
    Put<uint32_t>(is_data ? crc32 : member.crc32, &out);
    Put<uint32_t>(wide ? kMax32 : member.size, &out);
    Put<uint32_t>(wide ? kMax32 : member.size, &out);
    Put<uint16_t>(member.name.size(), &out);
    Put<uint16_t>(wide ? 20 : 0, &out);
    Put<uint16_t>(0, &out);  // comment
    Put<uint16_t>(0, &out);  // disk
    Put<uint16_t>(0, &out);
    Put<uint32_t>(0, &out);
    Put<uint32_t>(member.header_offset, &out);
    out += member.name;
    if (wide) {
      Put<uint16_t>(1, &out);
      Put<uint16_t>(16, &out);
      Put<uint64_t>(member.size, &out);
      Put<uint64_t>(member.size, &out);
    }
  }
  const uint64_t directory_bytes = out.size() - directory_start;
  if (directory_offset >= kMax32) {
    const uint64_t end_offset = directory_offset + directory_bytes;
    Put<uint32_t>(0x06064b50, &out);
    Put<uint64_t>(44, &out);
    Put<uint16_t>(45, &out);
    Put<uint16_t>(45, &out);
    Put<uint32_t>(0, &out);
    Put<uint32_t>(0, &out);
    Put<uint64_t>(members_.size(), &out);
    Put<uint64_t>(members_.size(), &out);
    Put<uint64_t>(directory_bytes, &out);
    Put<uint64_t>(directory_offset, &out);
    Put<uint32_t>(0x07064b50, &out);
    Put<uint32_t>(0, &out);
    Put<uint64_t>(end_offset, &out);
    Put<uint32_t>(1, &out);
  }
  Put<uint32_t>(0x06054b50, &out);
  Put<uint16_t>(0, &out);
  Put<uint16_t>(0, &out);
  Put<uint16_t>(members_.size(), &out);
  Put<uint16_t>(members_.size(), &out);
  Put<uint32_t>(directory_bytes, &out);
  Put<uint32_t>(directory_offset >= kMax32 ? kMax32 : directory_offset, &out);
  Put<uint16_t>(0, &out);
  return out;
}

std::string PtWriter::Suffix() const { return SuffixWithCrc(crc32_); }

uint64_t PtWriter::FileBytes() const {
  return prefix_.size() + data_bytes_ + SuffixWithCrc(0).size();
}

}  // namespace rankprobe
