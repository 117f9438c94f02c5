// SPDX-License-Identifier: Apache-2.0
#include "cli/client/cache_faults.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "analysis/calls/call_place.h"
#include "cli/client/card_sections.h"
#include "cli/client/fetch_events.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"
#include "dump_format/json_value.h"

namespace rankprobe {
namespace {

// Prefix of the text of the witness's events.
constexpr absl::string_view kOfEvent = "kv cache: ";
constexpr uint32_t kMostEvents = 10000;

void ReadCard(const JsonValue& section, const DumpPlace& place,
              CacheFaults* out) {
  out->has_witness = true;
  for (const JsonMember& fact : section.fields()) {
    if (!fact.value.is_string()) continue;
    absl::string_view name = fact.key;
    int64_t number = 0;
    if (name == "blocks checked" &&
        absl::SimpleAtoi(fact.value.text, &number)) {
      out->blocks_checked += number;
    } else if (absl::ConsumePrefix(&name, "step ") &&
               absl::SimpleAtoi(name.substr(0, name.find(' ')), &number)) {
      out->faults.insert({number, place.process ? -1 : analysis::RankOf(place),
                          std::string(fact.value.text)});
    }
  }
}

}  // namespace

void CacheFaults::Add(CacheFaults other) {
  has_witness |= other.has_witness;
  blocks_checked += other.blocks_checked;
  faults.merge(other.faults);
}

void CacheFaults::AddTo(const std::string& request,
                        DiagnosisReport* report) const {
  for (const Fault& fault : faults) {
    if (!request.empty() &&
        !absl::StrContains(fault.text, absl::StrCat("\"", request, "\"")))
      continue;
    const size_t end = fault.text.find(": ");
    const std::string place = VisibleText(fault.text.substr(0, end));
    report->Add(
        kCacheRule, fault.step, fault.rank, place,
        end == std::string::npos ? "" : VisibleText(fault.text.substr(end + 2)),
        /*exact=*/true);
  }
}

absl::StatusOr<CacheFaults> ReadCacheFaults(FileSystem* file_system,
                                            const DumpLayout& layout) {
  CacheFaults out;
  RP_RETURN_IF_ERROR(ReadCardSections(
      file_system, layout, kCacheRule,
      [&out](const DumpPlace& place, const JsonValue& section) {
        ReadCard(section, place, &out);
      }));
  return out;
}

absl::StatusOr<CacheFaults> AskCacheFaults(
    const Client& client, const std::string& run,
    const std::set<uint64_t>& incarnations) {
  RP_ASSIGN_OR_RETURN(const v1::ListEventsResponse response,
                      FetchEvents(client, run, 0, kMostEvents));
  CacheFaults out;
  for (const v1::Event& event : response.events()) {
    absl::string_view text = event.detail();
    if (event.kind() != v1::Event::KIND_ERROR ||
        !absl::ConsumePrefix(&text, kOfEvent) ||
        (!incarnations.empty() &&
         !incarnations.contains(event.identity().incarnation())))
      continue;
    out.faults.insert(
        {event.step(),
         event.identity().has_rank() ? event.identity().rank() : -1,
         std::string(text)});
  }
  return out;
}

}  // namespace rankprobe
