// SPDX-License-Identifier: Apache-2.0
#include "dump_format/manifest.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/text/json_text.h"

namespace rankprobe {
namespace {

void WritePlaces(const char* key, const std::vector<Manifest::Place>& places,
                 JsonTextWriter* json) {
  json->Key(key);
  json->BeginArray();
  for (const Manifest::Place& place : places) {
    json->BeginObject();
    json->Key("step");
    json->Int(place.step);
    json->Key("rank");
    json->String(place.directory);
    json->Key("detail");
    json->String(place.detail);
    json->EndObject();
  }
  json->EndArray();
}

void OptionalCount(bool known, uint64_t value, JsonTextWriter* json) {
  if (known) {
    json->Uint(value);
  } else {
    json->Null();
  }
}

}  // namespace

void Manifest::AddLedger(std::string directory, v1::StepLedger ledger) {
  gap_count_ += static_cast<size_t>(ledger.gaps_size());
  accounts_.push_back({std::move(directory), std::move(ledger)});
}

void Manifest::Append(const Manifest& other) {
  files_.insert(files_.end(), other.files_.begin(), other.files_.end());
  accounts_.insert(accounts_.end(), other.accounts_.begin(),
                   other.accounts_.end());
  incomplete_.insert(incomplete_.end(), other.incomplete_.begin(),
                     other.incomplete_.end());
  conflicts_.insert(conflicts_.end(), other.conflicts_.begin(),
                    other.conflicts_.end());
  gap_count_ += other.gap_count_;
}

std::string Manifest::ToJson() const {
  std::string out;
  JsonTextWriter json(&out);
  json.BeginObject();
  json.Key("format");
  json.String("rankprobe-manifest-1");
  json.Key("run");
  json.String(run_);
  if (!request_.empty()) {
    json.Key("request");
    json.String(request_);
  }
  json.Key("files");
  json.BeginArray();
  for (const File& file : files_) {
    json.BeginObject();
    json.Key("path");
    json.String(file.path);
    json.Key("bytes");
    json.Uint(file.bytes);
    json.Key("xxh3_64");
    json.String(absl::StrFormat("%016x", file.xxh3));
    json.EndObject();
  }
  json.EndArray();
  json.Key("gaps");
  json.BeginArray();
  for (const Account& account : accounts_) {
    for (const v1::LedgerGap& gap : account.ledger.gaps()) {
      json.BeginObject();
      json.Key("step");
      json.Int(account.ledger.step());
      json.Key("rank");
      json.String(account.directory);
      json.Key("entry");
      json.String(gap.entry());
      json.Key("reason");
      json.String(gap.reason());
      json.Key("records");
      json.Uint(gap.records());
      json.Key("payloads");
      json.Uint(gap.payloads());
      json.Key("detail");
      json.String(gap.detail());
      json.EndObject();
    }
  }
  json.EndArray();
  json.Key("ledger");
  json.BeginArray();
  for (const Account& account : accounts_) {
    const v1::StepLedger& ledger = account.ledger;
    json.BeginObject();
    json.Key("step");
    json.Int(ledger.step());
    json.Key("rank");
    json.String(account.directory);
    json.Key("expected_records");
    OptionalCount(ledger.has_expected_records(), ledger.expected_records(),
                  &json);
    json.Key("stored_records");
    json.Uint(ledger.stored_records());
    json.Key("expected_payloads");
    OptionalCount(ledger.has_expected_payloads(), ledger.expected_payloads(),
                  &json);
    json.Key("stored_payloads");
    json.Uint(ledger.stored_payloads());
    json.Key("filtered_calls");
    json.Uint(ledger.filtered_calls());
    json.EndObject();
  }
  json.EndArray();
  WritePlaces("incomplete", incomplete_, &json);
  WritePlaces("conflicts", conflicts_, &json);
  json.EndObject();
  return out;
}

}  // namespace rankprobe
