// SPDX-License-Identifier: Apache-2.0
#include "analysis/run_card/config_pack.h"

#include <minizip/unzip.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "analysis/run_card/cards.h"
#include "common/base/status_macros.h"
#include "dump_format/json_value.h"

namespace rankprobe::analysis {
namespace {

constexpr uint64_t kMaxMemberBytes = 64 << 20;
// Limit for the facts of one pack; a batch may have many tensors, but never
// this many.
constexpr size_t kMaxFacts = 1 << 22;
constexpr size_t kMaxBatchDepth = 64;
constexpr absl::string_view kPip = "pip";
constexpr absl::string_view kEnvironment = "env";
constexpr absl::string_view kHyperparameters = "hyperparameters/";
constexpr absl::string_view kWeights = "weights/";
constexpr absl::string_view kBatches = "dataset/";
constexpr absl::string_view kRandom = "random/";

// The agents' list of environment variables that are recorded: _harmless.py,
// which tests/python/test_run_card.py compares with this one.
constexpr std::array<absl::string_view, 22> kHarmless = {
    "CUDA_",          "CUBLAS_",    "CUDNN_",  "NCCL_", "NVIDIA_", "TORCH_",
    "TORCHINDUCTOR_", "PYTORCH_",   "OMP_",    "MKL_",  "KMP_",    "GLOO_",
    "HCCL_",          "ASCEND_",    "HIP_",    "ROCM_", "XLA_",    "FSDP_",
    "MEGATRON_",      "DEEPSPEED_", "TRITON_", "VLLM_"};
constexpr std::array<absl::string_view, 6> kHarmlessNames = {
    "PYTHONHASHSEED",      "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",    "TZ",
    "ATEN_CPU_CAPABILITY", "TOKENIZERS_PARALLELISM"};
constexpr std::array<absl::string_view, 21> kSecret = {
    "token",     "key",       "secret",  "passw", "passphrase", "pwd",
    "psw",       "private",   "cred",    "auth",  "cookie",     "session",
    "login",     "signature", "bearer",  "jwt",   "licens",     "licenc",
    "access_id", "access-id", "accessid"};
// These count only as complete words of a name.
constexpr std::array<absl::string_view, 8> kSecretWords = {
    "pass", "pw", "pat", "tok", "sas", "sig", "dsn", "aws"};

// Returns the position after the first occurrence of `word` in `text` from
// `from` on, or npos.
size_t BehindWord(absl::string_view text, absl::string_view word, bool whole,
                  size_t from) {
  const auto letter = [text](size_t at) {
    return at < text.size() && absl::ascii_isalpha(text[at]);
  };
  for (size_t at = text.find(word, from); at != absl::string_view::npos;
       at = text.find(word, at + 1)) {
    const size_t behind = at + word.size();
    if (!whole || (!(at > 0 && letter(at - 1)) && !letter(behind)))
      return behind;
  }
  return absl::string_view::npos;
}

// Whether `sounds` returns true for the text after any occurrence of one of the
// words.
bool AnyWord(absl::string_view text,
             absl::FunctionRef<bool(absl::string_view)> sounds) {
  const std::string lower = absl::AsciiStrToLower(text);
  const auto of = [&](absl::string_view word, bool whole) {
    for (size_t at = 0; (at = BehindWord(lower, word, whole, at)) !=
                        absl::string_view::npos;) {
      if (sounds(absl::string_view(lower).substr(at))) return true;
    }
    return false;
  };
  return std::any_of(kSecret.begin(), kSecret.end(),
                     [&](absl::string_view word) { return of(word, false); }) ||
         std::any_of(kSecretWords.begin(), kSecretWords.end(),
                     [&](absl::string_view word) { return of(word, true); });
}

bool MayBeSecret(absl::string_view name) {
  return AnyWord(name, [](absl::string_view) { return true; });
}

// True for "https://user:password@host", "api_key=..", "Authorization: ..".
bool HoldsSecret(absl::string_view value) {
  for (size_t at = value.find("//"); at != absl::string_view::npos;
       at = value.find("//", at + 1)) {
    const size_t end = value.find_first_of("/@ \t\n\r\f\v", at + 2);
    if (end != absl::string_view::npos && value[end] == '@') return true;
  }
  return AnyWord(value, [](absl::string_view rest) {
    size_t at = 0;
    while (at < rest.size() &&
           (absl::ascii_isalnum(rest[at]) || rest[at] == '_' ||
            rest[at] == '.' || rest[at] == '-'))
      ++at;
    if (at < rest.size() && (rest[at] == '"' || rest[at] == '\'')) ++at;
    while (at < rest.size() && absl::ascii_isspace(rest[at])) ++at;
    return at < rest.size() && (rest[at] == '=' || rest[at] == ':');
  });
}

bool IsHarmless(absl::string_view name) {
  const bool known = std::find(kHarmlessNames.begin(), kHarmlessNames.end(),
                               name) != kHarmlessNames.end() ||
                     std::any_of(kHarmless.begin(), kHarmless.end(),
                                 [name](absl::string_view prefix) {
                                   return absl::StartsWith(name, prefix);
                                 });
  return known && (name == "TOKENIZERS_PARALLELISM" || !MayBeSecret(name));
}

std::string ValueText(const JsonValue& value) {
  return value.is_string() ? std::string(value.text) : PythonText(value);
}

// Whether the value is the statistics of a tensor: {"max": 1.0, "min": ..}.
bool IsFeatures(const JsonValue& value) {
  return value.is_object() && value.size == 4 &&
         std::all_of(value.fields().begin(), value.fields().end(),
                     [](const JsonMember& member) {
                       return member.value.is_number() ||
                              member.value.is_null();
                     }) &&
         value.Find("norm") != nullptr;
}

// Step and rank of a path: "weights/step0/rank1/weight.json" gives 0 and 1.
struct Place {
  int64_t step = 0;
  int64_t rank = 0;
};

std::optional<int64_t> NumberBehind(absl::string_view text,
                                    absl::string_view prefix) {
  int64_t number = 0;
  if (!absl::ConsumePrefix(&text, prefix) || text.empty() ||
      !absl::ascii_isdigit(static_cast<unsigned char>(text[0])) ||
      !absl::SimpleAtoi(text, &number)) {
    return std::nullopt;
  }
  return number;
}

std::optional<Place> PlaceOf(absl::string_view member) {
  const std::vector<absl::string_view> parts = absl::StrSplit(member, '/');
  if (parts.size() != 4) return std::nullopt;
  const auto step = NumberBehind(parts[1], "step");
  const auto rank = NumberBehind(parts[2], "rank");
  if (!step.has_value() || !rank.has_value()) return std::nullopt;
  return Place{*step, *rank};
}

// Reads the members of a zip file in the order of its directory, with minizip.
class ZipMembers {
 public:
  // `file` outlives the object.
  ZipMembers(const RandomAccessFile* file, uint64_t size)
      : file_(file), size_(size) {
    zlib_filefunc64_def functions{};
    functions.opaque = this;
    functions.zopen64_file = [](voidpf self, const void*, int) { return self; };
    functions.zread_file = &Read;
    functions.ztell64_file = [](voidpf self, voidpf) -> ZPOS64_T {
      return static_cast<ZipMembers*>(self)->at_;
    };
    functions.zseek64_file = &Seek;
    functions.zclose_file = [](voidpf, voidpf) { return 0; };
    functions.zerror_file = [](voidpf self, voidpf) {
      return static_cast<ZipMembers*>(self)->ended_ ? 1 : 0;
    };
    zip_ = unzOpen2_64("", &functions);
  }
  ZipMembers(const ZipMembers&) = delete;
  ZipMembers& operator=(const ZipMembers&) = delete;
  ~ZipMembers() {
    if (zip_ != nullptr) unzClose(zip_);
  }

  // Returns the name of the next member, or nullopt at the end.
  absl::StatusOr<std::optional<std::string>> Next() {
    if (zip_ == nullptr) return absl::InvalidArgumentError("is not a zip file");
    const int found = begun_ ? unzGoToNextFile(zip_) : unzGoToFirstFile(zip_);
    begun_ = true;
    if (found == UNZ_END_OF_LIST_OF_FILE) return std::nullopt;
    std::string name(kMaxNameBytes, '\0');
    unz_file_info64 info{};
    if (found != UNZ_OK ||
        unzGetCurrentFileInfo64(zip_, &info, name.data(), name.size(), nullptr,
                                0, nullptr, 0) != UNZ_OK ||
        info.size_filename > name.size())
      return absl::InvalidArgumentError("the zip file's directory is damaged");
    name.resize(info.size_filename);
    return name;
  }

  // Returns the content of the member that Next() returned, after checking its
  // length and checksum against the directory.
  absl::StatusOr<std::string> Text() {
    const absl::Status damaged =
        absl::InvalidArgumentError("cannot be read from the zip file");
    if (unzOpenCurrentFile(zip_) != UNZ_OK) return damaged;
    std::string text;
    std::vector<char> piece(64 << 10);
    int got = 0;
    while ((got = unzReadCurrentFile(
                zip_, piece.data(), static_cast<unsigned>(piece.size()))) > 0 &&
           text.size() <= kMaxMemberBytes)
      text.append(piece.data(), static_cast<size_t>(got));
    const int closed = unzCloseCurrentFile(zip_);
    if (text.size() > kMaxMemberBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("has more than ", kMaxMemberBytes, " bytes"));
    }
    if (got < 0 || closed != UNZ_OK) return damaged;
    return text;
  }

 private:
  static constexpr size_t kMaxNameBytes = 4096;

  static uLong Read(voidpf self, voidpf, void* out, uLong size) {
    auto* const members = static_cast<ZipMembers*>(self);
    const uint64_t bytes =
        std::min<uint64_t>(size, members->size_ - members->at_);
    if (!members->file_
             ->Read(members->at_,
                    absl::MakeSpan(static_cast<char*>(out), bytes))
             .ok())
      return 0;
    members->ended_ = bytes < size;
    members->at_ += bytes;
    return bytes;
  }

  static long Seek(voidpf self, voidpf, ZPOS64_T offset,  // NOLINT: minizip's
                   int origin) {
    auto* const members = static_cast<ZipMembers*>(self);
    const uint64_t from = origin == ZLIB_FILEFUNC_SEEK_END   ? members->size_
                          : origin == ZLIB_FILEFUNC_SEEK_CUR ? members->at_
                                                             : 0;
    if (offset > members->size_ - from) return -1;
    members->at_ = from + offset;
    return 0;
  }

  const RandomAccessFile* const file_;
  const uint64_t size_;
  uint64_t at_ = 0;
  // The last read reached the end of the file. minizip treats a read of 0 bytes
  // as an error only if this is reported.
  bool ended_ = false;
  bool begun_ = false;
  unzFile zip_ = nullptr;
};

class PackReader {
 public:
  PackReader(ZipMembers* zip, std::string path)
      : zip_(zip), path_(std::move(path)) {}

  absl::StatusOr<Cards> Read() && {
    bool any = false;
    for (;;) {
      const absl::StatusOr<std::optional<std::string>> name = zip_->Next();
      if (!name.ok()) {
        if (!any) {
          return absl::InvalidArgumentError(
              absl::StrCat(path_, ": ", name.status().message()));
        }
        cards_.unread.push_back(
            absl::StrCat(path_, ": ", name.status().message()));
        break;
      }
      if (!name->has_value()) break;
      const absl::StatusOr<bool> read = Member(**name);
      if (!read.ok()) {
        cards_.unread.push_back(absl::StrCat(path_, ", ", OneLine(**name), ": ",
                                             read.status().message()));
      }
      any = any || !read.ok() || *read;
    }
    if (!any) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": is not a pack of msprobe config_check"));
    }
    return std::move(cards_);
  }

 private:
  // Returns whether the member belongs to a pack.
  absl::StatusOr<bool> Member(const std::string& name) {
    const bool packages = name == kPip;
    if (!packages && name != kEnvironment &&
        !(absl::EndsWith(name, ".json") &&
          (absl::StartsWith(name, kHyperparameters) ||
           absl::StartsWith(name, kWeights) ||
           absl::StartsWith(name, kBatches) ||
           absl::StartsWith(name, kRandom)))) {
      return false;
    }
    RP_ASSIGN_OR_RETURN(std::string text, zip_->Text());
    if (packages) {
      Packages(text);
      return true;
    }
    JsonDocument document;
    RP_RETURN_IF_ERROR(document.Parse(std::move(text)));
    const JsonValue& root = document.root();
    if (!root.is_object())
      return absl::InvalidArgumentError("an object is expected");
    if (name == kEnvironment) {
      for (const JsonMember& one : root.fields()) {
        std::string value = ValueText(one.value);
        if (IsHarmless(one.key) && !HoldsSecret(value))
          Once(0, "environment", std::string(one.key), std::move(value));
      }
    } else if (absl::StartsWith(name, kHyperparameters)) {
      Hyperparameters(root);
    } else if (absl::StartsWith(name, kRandom)) {
      return Random(name, root);
    } else {
      return OfStep(name, root);
    }
    return true;
  }

  void Packages(absl::string_view text) {
    for (const absl::string_view line :
         absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(line, absl::MaxSplits('=', 1));
      Once(0, "packages", std::string(absl::StripAsciiWhitespace(parts.first)),
           std::string(absl::StripAsciiWhitespace(parts.second)));
    }
  }

  // --learning-rate of a script and learning_rate of a program are the same
  // setting.
  void Hyperparameters(const JsonValue& root) {
    for (const JsonMember& one : root.fields()) {
      absl::string_view name = one.key;
      while (absl::ConsumePrefix(&name, "-")) {
      }
      std::string value = ValueText(one.value);
      if (MayBeSecret(name) || HoldsSecret(value)) value = "(not shown)";
      Once(0, "hyperparameters", absl::StrReplaceAll(name, {{"-", "_"}}),
           std::move(value));
    }
  }

  absl::StatusOr<bool> Random(absl::string_view name, const JsonValue& root) {
    absl::string_view file = name.substr(kRandom.size());
    absl::ConsumeSuffix(&file, ".json");
    const auto rank = NumberBehind(file, "rank");
    if (!rank.has_value()) return false;
    for (const JsonMember& function : root.fields()) {
      double calls = 0;
      for (const JsonValue& site : function.value.items()) {
        const JsonValue* const count = site.Find("count");
        if (count != nullptr && count->is_number()) calls += count->number;
      }
      Once(*rank, "random calls", std::string(function.key),
           absl::StrFormat("%.0f", calls));
    }
    return true;
  }

  absl::StatusOr<bool> OfStep(absl::string_view name, const JsonValue& root) {
    const auto place = PlaceOf(name);
    if (!place.has_value()) return false;
    Facts* const facts = &cards_.ranks[place->rank].steps[place->step];
    if (absl::StartsWith(name, kWeights)) {
      for (const JsonMember& one : root.fields())
        Add("weights", std::string(one.key), ValueText(one.value), facts);
      return true;
    }
    return Batch(root, "", 0, facts);
  }

  absl::StatusOr<bool> Batch(const JsonValue& value, const std::string& path,
                             size_t depth, Facts* facts) {
    if (depth > kMaxBatchDepth)
      return absl::InvalidArgumentError("a batch is nested too deep");
    if (!value.is_object() || IsFeatures(value)) {
      Add("batch", path, ValueText(value), facts);
      return true;
    }
    for (const JsonMember& one : value.fields()) {
      const std::string below = path.empty() ? std::string(one.key)
                                             : absl::StrCat(path, ".", one.key);
      RP_RETURN_IF_ERROR(Batch(one.value, below, depth + 1, facts).status());
    }
    return true;
  }

  void Once(int64_t rank, absl::string_view section, std::string name,
            std::string value) {
    Add(section, std::move(name), std::move(value), &cards_.ranks[rank].once);
  }

  void Add(absl::string_view section, std::string name, std::string value,
           Facts* facts) {
    if (++facts_ > kMaxFacts) {
      if (facts_ == kMaxFacts + 1)
        cards_.unread.push_back(
            absl::StrCat(path_, ": more than ", kMaxFacts,
                         " facts; the others are left out"));
      return;
    }
    facts->insert_or_assign(FactName(section, std::move(name)),
                            std::move(value));
  }

  ZipMembers* const zip_;
  const std::string path_;
  Cards cards_;
  size_t facts_ = 0;
};

absl::StatusOr<Cards> ReadPack(FileSystem* file_system,
                               const std::string& path) {
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system->OpenForRead(path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  ZipMembers zip(file.get(), size);
  return PackReader(&zip, path).Read();
}

}  // namespace

bool IsConfigPack(absl::string_view path) {
  return absl::EndsWith(path, ".zip");
}

absl::StatusOr<v1::RunCardReport> CompareConfigPacks(
    FileSystem* file_system, const std::string& target,
    const std::string& reference) {
  RP_ASSIGN_OR_RETURN(const Cards a, ReadPack(file_system, target));
  RP_ASSIGN_OR_RETURN(const Cards b, ReadPack(file_system, reference));
  return CompareCards(a, b);
}

}  // namespace rankprobe::analysis
