// SPDX-License-Identifier: Apache-2.0
#include "dump_format/dump_reader.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_rows.h"
#include "dump_format/dump_walk.h"
#include "dump_format/json_stream.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxSliceBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxKeptBytes = uint64_t{32} << 20;

constexpr absl::string_view kMonitorPrefixes[] = {"Parameter.", "Update.",
                                                  "Buffer.", "Training."};

absl::string_view Parent(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return slash == absl::string_view::npos ? absl::string_view()
                                          : path.substr(0, slash);
}

}  // namespace

absl::string_view DumpModeName(DumpMode mode) {
  switch (mode) {
    case DumpMode::kMd5:
      return "md5";
    case DumpMode::kTensor:
      return "all";
    case DumpMode::kStructure:
      return "structure";
    default:
      return "summary";
  }
}

DumpReader::DumpReader(FileSystem* file_system, std::string directory,
                       Options options)
    : file_system_(file_system),
      directory_(std::move(directory)),
      debug_(options.debug),
      keep_text_(options.keep_text) {}

absl::StatusOr<std::unique_ptr<DumpReader>> DumpReader::Open(
    FileSystem* file_system, const std::string& directory, Options options) {
  std::unique_ptr<DumpReader> reader(
      new DumpReader(file_system, directory, options));
  RP_RETURN_IF_ERROR(reader->Load(options));
  return reader;
}

absl::Status DumpReader::InFile(const std::string& path,
                                const absl::Status& status) const {
  // The message of the permission rule (input_files.h) names the path itself.
  if (status.ok() || absl::IsPermissionDenied(status)) return status;
  if (absl::StrContains(status.message(), path)) {
    return absl::InvalidArgumentError(OneLine(status.message()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", OneLine(status.message())));
}

absl::Status DumpReader::Load(Options options) {
  path_ = absl::StrCat(directory_, debug_ ? "/debug.json" : "/dump.json");
  RP_RETURN_IF_ERROR(InFile(path_, LoadIndex()));
  RP_RETURN_IF_ERROR(
      InFile(absl::StrCat(directory_, "/stack.json"), LoadStacks()));
  if (options.construct) {
    RP_RETURN_IF_ERROR(
        InFile(absl::StrCat(directory_, "/construct.json"), LoadConstruct()));
  }
  if (options.monitored && !debug_) RP_RETURN_IF_ERROR(LoadMonitored(options));
  if (options.notes) {
    RP_ASSIGN_OR_RETURN(notes_, TensorNotes::Read(file_system_, directory_));
  }
  return absl::OkStatus();
}

absl::Status DumpReader::ParseSlice(uint64_t begin, uint64_t end,
                                    JsonDocument* document) const {
  if (!text_.empty()) {
    return document->ParseView(text_.substr(begin, end - begin));
  }
  if (end - begin > kMaxSliceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record of over 1 GiB at byte ", begin));
  }
  std::string text(end - begin, '\0');
  RP_RETURN_IF_ERROR(file_->Read(begin, absl::MakeSpan(text)));
  return document->Parse(std::move(text));
}

absl::Status DumpReader::LoadIndex() {
  RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForRead(path_));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(path_));
  if (keep_text_ && size <= kMaxKeptBytes) {
    kept_ = std::make_unique_for_overwrite<char[]>(size);
    RP_RETURN_IF_ERROR(file_->Read(0, absl::MakeSpan(kept_.get(), size)));
    text_ = absl::string_view(kept_.get(), size);
  }
  JsonStream stream =
      text_.empty() ? JsonStream(file_.get(), size) : JsonStream(text_);
  DumpHead head;
  RP_RETURN_IF_ERROR(IndexEntries(&stream, &head));
  if (!head.task.has_value())
    return absl::InvalidArgumentError("has no \"task\"");
  task_ = *std::move(head.task);
  level_ = std::move(head.level).value_or("");
  framework_ = std::move(head.framework).value_or("");
  put_together_ = head.put_together.has_value();
  // Statistics that this version does not know are ignored.
  for (const std::string& key : head.extra_statistics) {
    for (size_t i = kUsualStatCount; i < kStatCount; ++i) {
      if (key == kStatInfo[i].key) stats_.Add(i);
    }
  }
  if (task_ == "tensor") {
    mode_ = DumpMode::kTensor;
  } else if (task_ == "structure") {
    mode_ = DumpMode::kStructure;
  } else if (task_ == "statistics") {
    mode_ = stream.saw_md5() ? DumpMode::kMd5 : DumpMode::kStatistics;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("task \"", task_,
                     "\" cannot be analysed; it must be tensor, statistics or "
                     "structure"));
  }
  return ResolveDataDir(head.dump_data_dir.value_or(""));
}

absl::Status DumpReader::ResolveDataDir(const std::string& dump_data_dir) {
  if (dump_data_dir.empty()) return absl::OkStatus();
  // A dump that was moved has its files next to the JSON, even if the recorded
  // path still exists.
  const std::string beside = absl::StrCat(directory_, "/dump_tensor_data");
  const bool moved =
      Parent(dump_data_dir) != absl::StripSuffix(directory_, "/");
  data_dir_ =
      moved || !file_system_->Exists(dump_data_dir) ? beside : dump_data_dir;
  return absl::OkStatus();
}

absl::Status DumpReader::IndexEntries(JsonStream* stream, DumpHead* head) {
  absl::flat_hash_map<std::string, uint32_t> seen;
  RP_RETURN_IF_ERROR(
      WalkDump(stream, head, [&](const std::string& key) -> absl::Status {
        Entry entry;
        RP_RETURN_IF_ERROR(stream->SkipValue(&entry.begin, &entry.end));
        const auto [it, is_new] =
            seen.try_emplace(key, static_cast<uint32_t>(entries_.size()));
        if (!is_new) {
          // Like Python: the position of the first, the value of the last.
          entries_[it->second].begin = entry.begin;
          entries_[it->second].end = entry.end;
          return absl::OkStatus();
        }
        if (entries_.size() >= UINT32_MAX) {
          return absl::InvalidArgumentError("too many entries");
        }
        entry.name_begin = names_.size();
        entry.name_length = static_cast<uint32_t>(key.size());
        names_.append(key);
        entries_.push_back(entry);
        return absl::OkStatus();
      }));
  // Freed before by_name_ is built, which holds the same names without copies.
  seen = {};
  by_name_.reserve(entries_.size());
  for (uint32_t i = 0; i < entries_.size(); ++i) by_name_[name(i)] = i;
  return absl::OkStatus();
}

absl::Status DumpReader::LoadMonitored(Options options) {
  if (!file_system_->Exists(absl::StrCat(directory_, "/debug.json")))
    return absl::OkStatus();
  Options beside;
  beside.debug = true;
  beside.keep_text = options.keep_text;
  RP_ASSIGN_OR_RETURN(beside_, Open(file_system_, directory_, beside));
  for (size_t i = 0; i < beside_->size(); ++i) {
    const absl::string_view name = beside_->name(i);
    const bool is_monitored =
        std::any_of(std::begin(kMonitorPrefixes), std::end(kMonitorPrefixes),
                    [name](absl::string_view prefix) {
                      return absl::StartsWith(name, prefix);
                    });
    if (is_monitored) monitored_.push_back(i);
  }
  return absl::OkStatus();
}

absl::string_view DumpReader::name(size_t index) const {
  if (index >= entries_.size())
    return beside_->name(monitored_[index - entries_.size()]);
  const Entry& entry = entries_[index];
  return absl::string_view(names_).substr(entry.name_begin, entry.name_length);
}

std::optional<size_t> DumpReader::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  if (it != by_name_.end()) return it->second;
  if (beside_ == nullptr) return std::nullopt;
  const std::optional<size_t> beside = beside_->Find(name);
  const auto place = std::lower_bound(monitored_.begin(), monitored_.end(),
                                      beside.value_or(0));
  if (!beside.has_value() || place == monitored_.end() || *place != *beside)
    return std::nullopt;
  return entries_.size() + static_cast<size_t>(place - monitored_.begin());
}

absl::Status DumpReader::Read(size_t index, JsonDocument* record) const {
  if (index >= entries_.size())
    return beside_->Read(monitored_[index - entries_.size()], record);
  const Entry& entry = entries_[index];
  absl::Status status = ParseSlice(entry.begin, entry.end, record);
  // Readers would find nothing in a value that is not an object, and report
  // nothing.
  if (status.ok() && !record->root().is_object() && !debug_ &&
      IsCallEntry(name(index))) {
    status = absl::InvalidArgumentError("is not an object");
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(path_, ": entry ",
                                                 OneLine(name(index)), ": ",
                                                 OneLine(status.message())));
}

absl::Status DumpReader::LoadStacks() {
  const std::string path = absl::StrCat(directory_, "/stack.json");
  if (debug_ || !file_system_->Exists(path)) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const auto file, file_system_->OpenForRead(path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(path));
  has_stack_ = true;
  JsonStream stream(file.get(), size);
  JsonDocument document;
  std::string scratch;
  return stream.ReadObject([&](const std::string& key) -> absl::Status {
    RP_ASSIGN_OR_RETURN(const absl::string_view text,
                        stream.ReadValue(kMaxSliceBytes, &scratch));
    RP_RETURN_IF_ERROR(document.ParseView(text));
    return AddStack(key, document.root());
  });
}

absl::Status DumpReader::AddStack(absl::string_view key,
                                  const JsonValue& value) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("entry ", key, " is not a stack"));
  if (!value.is_array()) return bad;
  const absl::Span<const JsonValue> items = value.items();
  // Newer: [[names], [frames]] for a number. Older: [frames] for a name.
  const bool grouped =
      items.size() == 2 && items[0].is_array() && items[1].is_array();
  std::vector<std::string> frames;
  for (const JsonValue& frame : grouped ? items[1].items() : items) {
    if (!frame.is_string()) return bad;
    frames.emplace_back(frame.text);
  }
  uint32_t id = static_cast<uint32_t>(stacks_.size());
  if (!grouped) {
    // Neighbours with equal stacks share an id; only the last stack is
    // compared.
    if (!stacks_.empty() && stacks_.back() == frames) {
      stack_of_[std::string(key)] = id - 1;
      return absl::OkStatus();
    }
    stack_of_[std::string(key)] = id;
  } else {
    for (const JsonValue& entry : items[0].items()) {
      if (!entry.is_string()) return bad;
      stack_of_[std::string(entry.text)] = id;
    }
  }
  stacks_.push_back(std::move(frames));
  return absl::OkStatus();
}

const std::vector<std::string>* DumpReader::Stack(
    absl::string_view name) const {
  const std::optional<uint32_t> id = StackId(name);
  return id.has_value() ? &stacks_[*id] : nullptr;
}

std::optional<uint32_t> DumpReader::StackId(absl::string_view name) const {
  const auto it = stack_of_.find(name);
  if (it == stack_of_.end()) return std::nullopt;
  return it->second;
}

absl::Status DumpReader::LoadConstruct() {
  const std::string path = absl::StrCat(directory_, "/construct.json");
  if (!file_system_->Exists(path)) {
    return absl::InvalidArgumentError(
        "is missing; a graph needs a dump of level L0 or mix with extra_info");
  }
  RP_ASSIGN_OR_RETURN(const auto file, file_system_->OpenForRead(path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(path));
  if (size > kMaxSliceBytes) {
    return absl::InvalidArgumentError("is larger than 1 GiB");
  }
  std::string text(size, '\0');
  RP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(text)));
  JsonDocument document;
  RP_RETURN_IF_ERROR(document.Parse(std::move(text)));
  if (!document.root().is_object()) {
    return absl::InvalidArgumentError("is not an object");
  }
  absl::flat_hash_map<absl::string_view, size_t> seen;
  for (const JsonMember& member : document.root().fields()) {
    if (member.key == "megatron_micro_step_number") {
      const double count = member.value.number;
      micro_step_count_ =
          count >= 0 && count < 1e9 ? static_cast<int64_t>(count) + 1 : 0;
      continue;
    }
    const JsonValue* parent = &member.value;
    ConstructEdge edge{std::string(member.key), std::nullopt, std::nullopt};
    if (parent->is_array() && parent->items().size() == 2) {
      const JsonValue& micro = parent->items()[1];
      if (micro.is_number() && micro.number >= 0 && micro.number < 1e9) {
        edge.micro_step = static_cast<int64_t>(micro.number);
      }
      parent = &parent->items()[0];
    }
    if (parent->is_string()) {
      edge.parent = std::string(parent->text);
    } else if (!parent->is_null()) {
      return absl::InvalidArgumentError(
          absl::StrCat("entry ", member.key, " has no name as its parent"));
    }
    const auto [it, is_new] = seen.try_emplace(member.key, construct_.size());
    if (is_new) {
      construct_.push_back(std::move(edge));
    } else {
      construct_[it->second] = std::move(edge);
    }
  }
  if (construct_.empty()) {
    return absl::InvalidArgumentError(
        "is empty; a graph needs a dump of level L0 or mix");
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
