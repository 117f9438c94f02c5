// SPDX-License-Identifier: Apache-2.0
#include "collector/control/run_edits.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/control/run_plans.h"
#include "common/config/config_reader.h"
#include "common/text/visible_text.h"
#include "rapidjson/document.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxPathBytes = 1024;
constexpr size_t kMaxFaultBytes = 2048;

}  // namespace

FileEdit FileEdit::Read(const v1::ConfigEdited& untrusted,
                        const v1::Identity& identity) {
  FileEdit edit;
  edit.rank = RankOf(identity);
  edit.who =
      absl::StrCat(RankText(identity), ", ",
                   VisibleText(untrusted.path().substr(0, kMaxPathBytes)));
  edit.seen_epoch = untrusted.seen_epoch();
  edit.fault = VisibleText(untrusted.fault().substr(0, kMaxFaultBytes));
  if (edit.fault.empty()) {
    auto config = RunPlans::Parse(untrusted.config_json());
    if (config.ok()) {
      edit.config_json = untrusted.config_json();
      edit.config = *std::move(config);
      edit.key = RunEdits::KeyOf(edit.config_json);
      return edit;
    }
    edit.fault =
        VisibleText(config.status().message().substr(0, kMaxFaultBytes));
  }
  edit.key = absl::StrCat("fault: ", edit.fault);
  return edit;
}

bool FileEdit::IsOlderThan(const v1::PlanSpec& plan) const {
  return plan.source() == v1::PlanSpec::SOURCE_OPERATOR &&
         plan.epoch() > seen_epoch;
}

std::string RunEdits::KeyOf(const std::string& config_json) {
  rapidjson::Document document;
  if (!ParseConfigDocument(config_json, &document).ok()) return config_json;
  document.RemoveMember("dump_path");
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
  document.Accept(writer);
  return {buffer.GetString(), buffer.GetSize()};
}

bool RunEdits::Take(FileEdit edit, std::optional<FileEdit>* superseded) {
  if (edit.key == key_) return false;
  key_ = edit.key;
  aside_.reset();
  *superseded = std::exchange(waiting_, std::move(edit));
  return true;
}

std::optional<FileEdit> RunEdits::Next(absl::Time now) {
  if (!waiting_.has_value() || now < waiting_->not_before) return std::nullopt;
  return std::exchange(waiting_, std::nullopt);
}

bool RunEdits::SetAside(FileEdit edit) {
  const bool is_new = !aside_.has_value() || aside_->state != edit.state;
  aside_ = std::move(edit);
  return is_new;
}

bool RunEdits::TryAgain(FileEdit edit) {
  if (waiting_.has_value() || edit.key != key_) return false;
  waiting_ = std::move(edit);
  return true;
}

}  // namespace rankprobe
