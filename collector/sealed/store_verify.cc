// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/store_verify.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/store/verify.h"
#include "common/base/status_macros.h"
#include "common/io/content_hash.h"

namespace rankprobe {
namespace {

constexpr uint64_t kPieceBytes = 8 << 20;

// An object that entries of the log name, and the steps in it.
struct Named {
  std::string name;
  std::string key;
  bool is_pack = false;
  uint64_t bytes = 0;
  int64_t first_step = INT64_MAX, last_step = INT64_MIN;
};

class StoreVerifier {
 public:
  StoreVerifier(
      ObjectStore* store, const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress)
      : store_(store), request_(request), progress_(progress) {}

  absl::StatusOr<v1::VerifyReport> Run() {
    std::vector<absl::Status> bad;
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> runs,
                        sealed::ListRunNames(store_, nullptr, &bad));
    for (const absl::Status& status : bad) Fault(std::string(status.message()));
    for (const std::string& run : runs) {
      const absl::Status looked = LookAt(run);
      if (!looked.ok() && !sealed::IsOfOneObject(looked)) return looked;
      if (!looked.ok())
        Fault(absl::StrCat("run ", run, ": ", looked.message()));
      RP_RETURN_IF_ERROR(Told());
    }
    report_.set_finished(true);
    return report_;
  }

 private:
  void Fault(const std::string& text) { AddFault(text, &report_); }
  absl::Status Told() {
    return progress_ ? progress_(report_) : absl::OkStatus();
  }

  absl::Status LookAt(const std::string& run) {
    std::vector<absl::Status> bad;
    RP_ASSIGN_OR_RETURN(const sealed::RunLog log,
                        sealed::ReadRunLog(store_, run, &bad));
    for (const absl::Status& status : bad)
      Fault(absl::StrCat("run ", run, ": ", status.message()));
    for (const v1::SealedLogEntry& entry : log.sets) Count(log, entry);
    const std::vector<Named> named = NamedBy(run, log);
    // Listed after the log was read: a collector puts an object before the
    // entry that names it.
    RP_ASSIGN_OR_RETURN(const Sizes sizes, SizesOf(run));
    std::vector<std::pair<const Named*, std::string>> wrong;
    for (const Named& object : named) {
      report_.set_objects(report_.objects() + 1);
      const auto it = sizes.find(object.key);
      if (it == sizes.end()) {
        wrong.emplace_back(&object, "is not there");
      } else if (it->second != object.bytes) {
        wrong.emplace_back(&object,
                           absl::StrCat("has ", it->second, " bytes there"));
      } else if (request_.read_data() && IsChosen(object)) {
        RP_ASSIGN_OR_RETURN(const std::string fault, Read(object));
        if (!fault.empty()) wrong.emplace_back(&object, fault);
      }
    }
    if (wrong.empty()) return absl::OkStatus();
    bad.clear();
    RP_ASSIGN_OR_RETURN(const sealed::RunLog now,
                        sealed::ReadRunLog(store_, run, &bad));
    std::set<std::string> still;
    for (Named& object : NamedBy(run, now)) still.insert(std::move(object.key));
    for (const auto& [object, fault] : wrong) {
      if (still.count(object->key) == 0) continue;
      Fault(absl::StrCat("run ", run, ", ",
                         object->first_step == object->last_step
                             ? absl::StrCat("step ", object->first_step)
                             : absl::StrCat("steps ", object->first_step,
                                            " to ", object->last_step),
                         ": ", object->is_pack ? "tensors: " : "records: ",
                         object->key, " of ", object->bytes, " bytes ", fault));
    }
    return absl::OkStatus();
  }

  void Count(const sealed::RunLog& log, const v1::SealedLogEntry& entry) {
    report_.set_rows(report_.rows() + 1);
    for (const v1::SealedStep& step : entry.steps()) {
      if (log.maintenance.FateOf(step.info().step(),
                                 step.info().incarnation()) !=
          sealed::Maintenance::Fate::kThere)
        continue;
      for (const v1::OrderRange& range : step.orders())
        report_.set_records(report_.records() + range.last() - range.first() +
                            1);
    }
  }

  // Returns the objects that should exist, each once, in the order of keys.
  std::vector<Named> NamedBy(const std::string& run,
                             const sealed::RunLog& log) {
    const std::string run_key = sealed::RunKey(run);
    std::map<std::string, Named> named;
    const auto add = [&](const v1::SealedLogEntry& entry,
                         const v1::SealedObject& object, bool is_pack) {
      std::string key = is_pack ? sealed::PackKey(run_key, object.name())
                                : sealed::RecordsKey(run_key, object.name());
      Named& it = named[key];
      it.name = object.name();
      it.key = std::move(key);
      it.is_pack = is_pack;
      it.bytes = object.bytes();
      for (const v1::SealedStep& step : entry.steps()) {
        it.first_step = std::min(it.first_step, step.info().step());
        it.last_step = std::max(it.last_step, step.info().step());
      }
    };
    for (const v1::SealedLogEntry& entry : log.sets) {
      if (entry.has_records() &&
          !log.maintenance.IsRemovedRecords(entry.records().name()))
        add(entry, entry.records(), /*is_pack=*/false);
      for (const v1::SealedObject& pack : entry.packs())
        if (!log.maintenance.IsRemoved(pack.name()))
          add(entry, pack, /*is_pack=*/true);
    }
    std::vector<Named> all;
    all.reserve(named.size());
    for (auto& [key, object] : named) all.push_back(std::move(object));
    return all;
  }

  using Sizes = std::map<std::string, uint64_t>;
  absl::StatusOr<Sizes> SizesOf(const std::string& run) {
    const std::string run_key = sealed::RunKey(run);
    RP_ASSIGN_OR_RETURN(
        Sizes sizes,
        sealed::ListObjects(store_, sealed::RecordsPrefix(run_key)));
    RP_ASSIGN_OR_RETURN(
        Sizes packs, sealed::ListObjects(store_, sealed::PacksPrefix(run_key)));
    sizes.merge(packs);
    return sizes;
  }

  bool IsChosen(const Named& object) const {
    if (request_.subset_percent() == 0) return true;
    // The name is a digest, so its beginning is evenly distributed.
    uint64_t number = 0;
    return !absl::SimpleHexAtoi(object.name.substr(0, 8), &number) ||
           number % 100 < request_.subset_percent();
  }

  // Returns what is wrong with its bytes; empty if nothing.
  absl::StatusOr<std::string> Read(const Named& object) {
    PayloadHash hash;
    for (uint64_t at = 0; at < object.bytes; at += kPieceBytes) {
      const uint64_t length = std::min(kPieceBytes, object.bytes - at);
      const absl::StatusOr<std::string> piece =
          store_->Get(object.key, at, length);
      if (absl::IsNotFound(piece.status())) return "is not there";
      if (!piece.ok() && sealed::IsOfOneObject(piece.status()))
        return absl::StrCat("cannot be read: ", piece.status().message());
      RP_RETURN_IF_ERROR(piece.status());
      hash.Add(*piece);
      report_.set_payload_bytes_read(report_.payload_bytes_read() + length);
      RP_RETURN_IF_ERROR(Told());
    }
    if (absl::BytesToHexString(hash.Digest()) == object.name) return "";
    return "is damaged: its bytes are not those that were put";
  }

  ObjectStore* const store_;
  const v1::VerifyRequest& request_;
  const std::function<absl::Status(const v1::VerifyReport&)>& progress_;
  v1::VerifyReport report_;
};

}  // namespace

absl::StatusOr<v1::VerifyReport> VerifyObjectStore(
    ObjectStore* store, const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress) {
  return StoreVerifier(store, request, progress).Run();
}

}  // namespace rankprobe
