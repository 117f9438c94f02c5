#include "collector/archive/manifest.h"

#include "absl/strings/str_format.h"
#include "common/json_text.h"

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

}  // namespace

std::string Manifest::ToJson() const {
  std::string out;
  JsonTextWriter json(&out);
  json.BeginObject();
  json.Key("format");
  json.String("rankprobe-manifest-1");
  json.Key("run");
  json.String(run_);
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
  for (const Gap& gap : gaps_) {
    json.BeginObject();
    json.Key("step");
    json.Int(gap.step);
    json.Key("rank");
    json.String(gap.directory);
    json.Key("entry");
    json.String(gap.entry);
    json.Key("reason");
    json.String(gap.reason);
    json.Key("records");
    json.Uint(gap.records);
    json.Key("payloads");
    json.Uint(gap.payloads);
    json.Key("detail");
    json.String(gap.detail);
    json.EndObject();
  }
  json.EndArray();
  WritePlaces("incomplete", incomplete_, &json);
  WritePlaces("conflicts", conflicts_, &json);
  json.EndObject();
  return out;
}

}  // namespace rankprobe
