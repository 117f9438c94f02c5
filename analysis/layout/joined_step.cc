// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/joined_step.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/layout/joined_payload.h"
#include "analysis/layout/joined_texts.h"
#include "analysis/layout/layout_execute.h"
#include "analysis/layout/layout_plan.h"
#include "analysis/layout/own_values.h"
#include "analysis/layout/record_leaves.h"
#include "analysis/layout/step_ranks.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "dump_format/dump_rows.h"
#include "dump_format/dump_walk.h"
#include "dump_format/pt_writer.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kMaxExamples = 5;

struct Opened {
  size_t rank = 0;
  std::unique_ptr<JsonDocument> record;
  Leaves leaves;
};

class StepJoiner {
 public:
  StepJoiner(FileSystem* file_system, const StepRanks* ranks,
             const DumpReader* whole, const LayoutOptions& options,
             GivenLayout* given, const std::string& directory,
             LayoutCounts* counts)
      : file_system_(file_system),
        ranks_(*ranks),
        whole_(whole),
        given_(given),
        directory_(directory),
        data_(directory + "/dump_tensor_data"),
        payloads_(ranks->dump(0).mode() == DumpMode::kTensor),
        counts_(*counts),
        json_(&text_) {
    facts_.model_groups =
        given == nullptr ? ranks->model_groups() : given->ModelGroups();
    facts_.split_batch = options.split_batch;
  }

  absl::Status Run() {
    RP_RETURN_IF_ERROR(
        file_system_->CreateDirectories(payloads_ ? data_ : directory_));
    const DumpReader& first = ranks_.dump(0);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      stats_ = stats_ | ranks_.dump(i).stats();
    }
    json_.BeginObject();
    Member("task", first.task());
    Member("level", first.level());
    Member("framework", first.framework());
    if (payloads_) {
      Member("dump_data_dir", data_);
    } else {
      json_.Key("dump_data_dir");
      json_.Null();
    }
    WriteExtraStatisticsHead(stats_, &json_);
    Member(kPutTogetherKey, absl::StrCat("of ", ranks_.size(), " ranks"));
    json_.Key("data");
    json_.BeginObject();
    for (const StepRanks::Call& call : ranks_.calls()) {
      RP_RETURN_IF_ERROR(WriteCall(call));
    }
    json_.EndObject();
    json_.EndObject();
    RP_RETURN_IF_ERROR(WriteFile("dump.json", {text_}));
    if (!written_.empty()) {
      RP_RETURN_IF_ERROR(
          WriteFile("tensor_notes.json", {WrittenNotesJson(written_)}));
    }
    const std::string construct = JoinedConstruct(ranks_);
    if (!construct.empty()) {
      RP_RETURN_IF_ERROR(WriteFile("construct.json", {construct}));
    }
    const std::string stacks = JoinedStacks(ranks_);
    return stacks.empty() ? absl::OkStatus()
                          : WriteFile("stack.json", {stacks});
  }

 private:
  void Member(absl::string_view key, absl::string_view value) {
    json_.Key(key);
    json_.String(value);
  }

  absl::Status WriteCall(const StepRanks::Call& call) {
    name_ = call.name;
    sources_ = &call.sources;
    if (given_ != nullptr) parent_ = ranks_.ParentOf(call);
    ranks_.Describe(call, &facts_);
    own_.Begin(name_, ranks_.ExpertsOf(call));
    recorded_name_ = std::string(
        ranks_.dump(call.sources[0].rank).name(call.sources[0].entry));
    opened_.clear();
    for (const StepRanks::Source& source : call.sources) {
      Opened& one = opened_.emplace_back();
      one.rank = source.rank;
      one.record = std::make_unique<JsonDocument>();
      RP_RETURN_IF_ERROR(
          ranks_.dump(source.rank).Read(source.entry, one.record.get()));
      one.leaves = LeavesOf(one.record->root());
    }
    of_whole_.clear();
    alone_ = whole_ != nullptr;
    if (const auto index =
            whole_ == nullptr ? std::nullopt : whole_->Find(call.name);
        index.has_value()) {
      RP_RETURN_IF_ERROR(whole_->Read(*index, &whole_record_));
      of_whole_ = LeavesOf(whole_record_.root());
      alone_ = false;
    }
    // The call is not compared with any other, so the results for its tensors
    // are not counted.
    if (alone_) ++counts_.calls_alone;
    json_.Key(call.name);
    std::string place;
    return Write(opened_[0].record->root(), &place);
  }

  absl::Status Write(const JsonValue& value, std::string* place) {
    if (IsLeaf(value)) return WriteLeaf(*place, value);
    const size_t length = place->size();
    if (value.is_array()) {
      json_.BeginArray();
      size_t index = 0;
      for (const JsonValue& item : value.items()) {
        absl::StrAppend(place, ".", index++);
        RP_RETURN_IF_ERROR(Write(item, place));
        place->resize(length);
      }
      json_.EndArray();
    } else if (value.is_object()) {
      json_.BeginObject();
      for (const JsonMember& member : value.fields()) {
        json_.Key(member.key);
        absl::StrAppend(place, ".", member.key);
        RP_RETURN_IF_ERROR(Write(member.value, place));
        place->resize(length);
      }
      json_.EndObject();
    } else {
      WriteJson(value, &json_);
    }
    return absl::OkStatus();
  }

  absl::Status WriteLeaf(const std::string& place, const JsonValue& record) {
    const JsonValue* const dtype = record.Find("dtype");
    const JsonValue* const shape = record.Find("shape");
    if (dtype == nullptr || !dtype->is_string() || shape == nullptr ||
        !shape->is_array()) {
      WriteValue(place, record);
      return absl::OkStatus();
    }
    if (!alone_) ++counts_.tensors;
    if (const TensorNote* const note = ranks_.NoteOf((*sources_)[0], place);
        note != nullptr && note->written) {
      written_.push_back(absl::StrCat(name_, RowOf(place)));
    }
    std::vector<TensorPart> parts;
    std::vector<const JsonValue*> records;
    const PlacementRule* rule = nullptr;
    for (const Opened& one : opened_) {
      const JsonValue* const leaf = FindLeaf(one.leaves, place);
      if (leaf == nullptr) continue;
      auto part = ReadTensorPart(ranks_.RankOf(one.rank), stats_, *leaf);
      if (!part.ok()) {
        return WriteRefused(place, record, part.status().message());
      }
      if (given_ != nullptr) {
        const auto placed = given_->Place({name_, parent_}, place, &*part);
        if (!placed.ok()) {
          return WriteRefused(place, record, placed.status().message());
        }
        rule = *placed;
      }
      parts.push_back(*std::move(part));
      records.push_back(leaf);
    }
    std::optional<TensorPart> whole;
    if (const JsonValue* const leaf = FindLeaf(of_whole_, place);
        leaf != nullptr && leaf->Find(kNotPutTogether) == nullptr) {
      auto part = ReadTensorPart(0, stats_, *leaf);
      // For a run on one rank, the mesh carries no information.
      if (part.ok()) whole = *std::move(part);
    }
    auto planned =
        PlanTensor(parts, whole.has_value() ? &*whole : nullptr, facts_);
    if (!planned.ok()) {
      // Called for its effect: OwnValues also remembers local values that
      // cannot be joined.
      OwnWhy(place, parts, nullptr, whole);
      return WriteRefused(place, record, planned.status().message());
    }
    JoinPlan& plan = planned->plan;
    if (const std::string why = OwnWhy(place, parts, &plan, whole);
        !why.empty()) {
      return WriteRefused(place, record, why);
    }
    if (const std::string why = NotTheWhole(place, parts, plan); !why.empty())
      return WriteRefused(place, record, why);
    if (rule != nullptr && whole.has_value() && whole->shape != plan.shape) {
      return WriteRefused(
          place, record,
          absl::StrCat(given_->NameOf(*rule), " makes it ",
                       SizesText(plan.shape), ", the other run has ",
                       SizesText(whole->shape)));
    }
    const std::string differ =
        ChooseCopies(parts, whole.has_value() ? &whole->stats : nullptr, &plan);
    if (!differ.empty() && !alone_) {
      ++counts_.copies_differ;
      AddExample(&counts_.differing, place, differ);
    }
    Count(*planned);
    return WriteTensor(place, record, parts, records, plan, differ);
  }

  // Calls OwnValues::Why. `plan` is null if there is none.
  std::string OwnWhy(const std::string& place,
                     absl::Span<const TensorPart> parts, const JoinPlan* plan,
                     const std::optional<TensorPart>& whole) {
    if (alone_ || !own_.inside()) return "";
    if (ranks_.IsUnwritten((*sources_)[0], place)) {
      return "memory that may be uninitialized";
    }
    PartStats stats;
    if (plan != nullptr) stats = JoinStatistics(*plan, parts).stats;
    return own_.Why(place, parts, plan == nullptr ? nullptr : &stats,
                    whole.has_value() ? &*whole : nullptr);
  }

  // Returns a reason if the recorded size of the complete tensor differs from
  // that of its joined parts.
  std::string NotTheWhole(const std::string& place,
                          const std::vector<TensorPart>& parts,
                          const JoinPlan& plan) const {
    if (parts.empty() || !parts[0].mesh.has_value()) return "";
    for (const StepRanks::Source& source : *sources_) {
      const TensorNote* const note = ranks_.NoteOf(source, place);
      if (note == nullptr || note->global_shape.empty() ||
          note->global_shape == plan.shape) {
        continue;
      }
      return absl::StrCat("its parts make ", SizesText(plan.shape),
                          ", the full size is ", SizesText(note->global_shape));
    }
    return "";
  }

  void Count(const PlannedTensor& planned) {
    if (alone_) return;
    if (planned.by_batch) ++counts_.by_batch;
    if (planned.by_shape) ++counts_.by_shape;
    if (HasSum(planned.plan)) {
      ++counts_.sums;
    } else if (!planned.by_batch && !planned.by_shape) {
      if (OnePart(planned.plan) == nullptr) {
        ++counts_.shards;
      } else if (planned.plan.how == JoinPlan::How::kCopies) {
        ++counts_.copies;
      }
    }
  }

  void AddExample(std::vector<std::string>* list, const std::string& place,
                  absl::string_view text) {
    if (list->size() < kMaxExamples) {
      list->push_back(absl::StrCat(name_, place, ": ", text));
    }
  }

  // For a value that is not a tensor, uses the first rank's value if all ranks
  // agree.
  void WriteValue(const std::string& place, const JsonValue& record) {
    const JsonValue* const whole = FindLeaf(of_whole_, place);
    bool same = true;
    std::vector<RankValue> values;
    for (const Opened& one : opened_) {
      const JsonValue* const leaf = FindLeaf(one.leaves, place);
      if (leaf == nullptr) continue;
      same = same && PythonText(*leaf) == PythonText(record);
      values.push_back({ranks_.RankOf(one.rank), leaf});
    }
    if (whole != nullptr && PartsOfANumber(values, *whole, facts_)) {
      WriteJson(*whole, &json_);
      return;
    }
    std::string why;
    if (given_ != nullptr) why = given_->WhyLocal({name_, parent_}, place);
    if (why.empty() && whole != nullptr && IsWholeNumber(record)) {
      why = own_.WhyNumber(place,
                           same && PythonText(*whole) == PythonText(record));
    }
    same = same && why.empty();
    if (why.empty()) why = "the ranks' values differ";
    if (same || !record.is_object() || record.Find("type") == nullptr) {
      WriteJson(record, &json_);
      return;
    }
    Refuse(place, why);
    json_.BeginObject();
    for (const JsonMember& member : record.fields()) {
      json_.Key(member.key);
      WriteJson(member.value, &json_);
    }
    Member(kNotPutTogether, why);
    json_.EndObject();
  }

  void Refuse(const std::string& place, absl::string_view why) {
    if (alone_) return;
    ++counts_.refused;
    AddExample(&counts_.refusals, place, why);
  }

  void CopyMember(const JsonValue& record, absl::string_view key) {
    const JsonValue* const value = record.Find(key);
    if (value == nullptr) return;
    json_.Key(key);
    WriteJson(*value, &json_);
  }

  absl::Status WriteRefused(const std::string& place, const JsonValue& record,
                            absl::string_view why) {
    Refuse(place, why);
    json_.BeginObject();
    for (const char* const key : {"type", "dtype", "shape"}) {
      CopyMember(record, key);
    }
    for (size_t i = 0; i < kStatCount; ++i) {
      if (!stats_.Has(i)) continue;
      json_.Key(kStatInfo[i].key);
      json_.Null();
    }
    CopyMember(record, "requires_grad");
    Member(kNotPutTogether, why);
    json_.EndObject();
    return absl::OkStatus();
  }

  absl::Status WriteTensor(const std::string& place, const JsonValue& record,
                           absl::Span<const TensorPart> parts,
                           absl::Span<const JsonValue* const> records,
                           const JoinPlan& plan, const std::string& differ) {
    const JsonValue* const data_name = record.Find("data_name");
    std::string why;
    std::string file;
    std::optional<PartStats> of_bytes;
    const bool mixed = own_.inside() && !parts[0].mesh.has_value();
    if (payloads_ && mixed && !alone_) {
      why =
          "inside experts the order of tokens is each run's own: "
          "compared by statistics alone";
    } else if (payloads_ && data_name != nullptr && data_name->is_string()) {
      // Readers identify a row by its file.
      file =
          absl::StartsWith(data_name->text, recorded_name_)
              ? absl::StrCat(name_,
                             data_name->text.substr(recorded_name_.size()))
              : NameWithoutSharding(data_name->text, counts_.wrappers_left_out);
      const auto written = WriteBytes(file, parts, records, plan);
      if (written.ok()) {
        if (HasSum(plan)) of_bytes = *written;
      } else {
        file.clear();
        why = std::string(written.status().message());
      }
    }
    PartStats stats = JoinStatistics(plan, parts).stats;
    if (of_bytes.has_value()) {
      stats = *std::move(of_bytes);
    } else if (HasSum(plan) && why.empty()) {
      why =
          "a sum that is not reduced yet (Partial); its terms give only the "
          "mean";
    }
    if (std::any_of(parts.begin(), parts.end(),
                    [](const TensorPart& part) { return part.waiting; }) &&
        !stats[kMean].has_value()) {
      why = "its collective had not been waited for, so it has no statistics";
    }
    json_.BeginObject();
    const JsonValue* const type = record.Find("type");
    const bool numpy = type != nullptr && type->text == "numpy.ndarray";
    Member("type", numpy ? "numpy.ndarray" : "torch.Tensor");
    CopyMember(record, "dtype");
    json_.Key("shape");
    json_.BeginArray();
    for (const int64_t size : plan.shape) json_.Int(size);
    json_.EndArray();
    for (size_t i = 0; i < kStatCount; ++i) {
      if (!stats_.Has(i)) continue;
      json_.Key(kStatInfo[i].key);
      if (stats[i].has_value()) {
        json_.Raw(PartNumberText(*stats[i]));
      } else {
        json_.Null();
      }
    }
    CopyMember(record, "requires_grad");
    if (!file.empty()) Member("data_name", file);
    if (!differ.empty()) {
      Member("of", absl::StrCat(differ, ", whose copies differ"));
    }
    if (!why.empty()) {
      Refuse(place, why);
      Member(kNotPutTogether, why);
    }
    json_.EndObject();
    return absl::OkStatus();
  }

  // Writes the bytes and returns their statistics.
  absl::StatusOr<PartStats> WriteBytes(
      const std::string& file, absl::Span<const TensorPart> parts,
      absl::Span<const JsonValue* const> records, const JoinPlan& plan) {
    RP_ASSIGN_OR_RETURN(const AlignedTensor tensor,
                        ReadJoined(file_system_, ranks_, parts, records, plan));
    PtWriter pt(absl::StripSuffix(file, ".pt"), tensor.dtype, tensor.shape,
                tensor.bytes->size());
    pt.AddData(*tensor.bytes);
    RP_RETURN_IF_ERROR(WriteFile(absl::StrCat("dump_tensor_data/", file),
                                 {pt.prefix(), *tensor.bytes, pt.Suffix()}));
    PartStats out;
    if (!HasSum(plan)) return out;
    RP_ASSIGN_OR_RETURN(const UsualStats stats, StatsOf(tensor));
    for (size_t i = 0; i < kUsualStatCount; ++i) {
      if (stats[i].has_value()) out[i] = PartNumber{*stats[i], ""};
    }
    return out;
  }

  absl::Status WriteFile(const std::string& name,
                         const std::vector<std::string>& pieces) {
    RP_ASSIGN_OR_RETURN(
        const auto file,
        file_system_->OpenForWrite(absl::StrCat(directory_, "/", name),
                                   FileSystem::OpenMode::kCreateNew));
    for (const std::string& piece : pieces) {
      RP_RETURN_IF_ERROR(file->Append(piece));
    }
    return file->Close();
  }

  FileSystem* const file_system_;
  const StepRanks& ranks_;
  const DumpReader* const whole_;
  GivenLayout* const given_;
  const std::string directory_;
  const std::string data_;
  const bool payloads_;
  LayoutCounts& counts_;
  LayoutFacts facts_;
  StatSet stats_;
  std::string text_;
  JsonTextWriter json_;
  // State of the call that is written.
  std::string name_;
  const std::vector<StepRanks::Source>* sources_ = nullptr;  // of the call
  std::vector<std::string> written_;  // rows that their operators write
  std::string parent_;                // for rules
  OwnValues own_;
  std::string recorded_name_;  // by its first rank
  bool alone_ = false;
  std::vector<Opened> opened_;
  JsonDocument whole_record_;
  Leaves of_whole_;
};

}  // namespace

absl::Status JoinStep(FileSystem* file_system,
                      absl::Span<const DumpPlace> ranks,
                      const DumpReader* whole, const LayoutOptions& options,
                      GivenLayout* given, const std::string& directory,
                      LayoutCounts* counts) {
  RP_ASSIGN_OR_RETURN(
      const StepRanks opened,
      StepRanks::Open(file_system, ranks, whole, counts->wrappers_left_out));
  return StepJoiner(file_system, &opened, whole, options, given, directory,
                    counts)
      .Run();
}

}  // namespace rankprobe::analysis
