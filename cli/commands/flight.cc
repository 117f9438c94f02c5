// SPDX-License-Identifier: Apache-2.0
// flight, flag: the contents of the flight recorders, for all or for a request.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/app.h"
#include "cli/client/choose_run.h"
#include "cli/client/fetch_events.h"
#include "cli/flags/ranges.h"
#include "cli/output/output.h"
#include "common/base/monotonic_event.h"
#include "common/base/status_macros.h"
#include "common/config/trigger_spec.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// A rank answers at once, also while it has no step to run.
constexpr absl::Duration kLongestAnswer = absl::Seconds(10);
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(50);

struct FlightFlags {
  std::string run, ranks, request;
};

absl::StatusOr<v1::ShipFlightRequest> RequestOf(const Client& client,
                                                const FlightFlags& flags) {
  v1::ShipFlightRequest request;
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> chosen,
                      ParseRanges("--ranks", flags.ranks));
  for (const int64_t rank : chosen) request.add_ranks(rank);
  RP_ASSIGN_OR_RETURN(*request.mutable_run(), ChooseRun(client, flags.run));
  request.set_request(flags.request);
  return request;
}

absl::Status Flight(const Globals& globals, const FlightFlags& flags) {
  const Client client(globals);
  RP_ASSIGN_OR_RETURN(const v1::ShipFlightRequest request,
                      RequestOf(client, flags));
  RP_ASSIGN_OR_RETURN(const v1::ShipFlightResponse response,
                      client.Act(&ControlStub::ShipFlight, request));
  if (globals.json) {
    PrintJson(ToJson(response));
  } else {
    Print(stdout, "asked %s to write the flight recorder\n",
          Counted(response.ranks(), "rank"));
  }
  return absl::OkStatus();
}

// Waits until `ranks` ranks have answered; returns their answers.
absl::StatusOr<v1::ListEventsResponse> AwaitAnswers(
    const Client& client, const v1::ShipFlightRequest& request, uint64_t after,
    uint64_t ranks) {
  const MonotonicTime deadline = MonotonicAfter(kLongestAnswer);
  v1::ListEventsResponse answers;
  while (true) {
    RP_ASSIGN_OR_RETURN(const v1::ListEventsResponse newer,
                        FetchEvents(client, request.run(), after, 0));
    for (const v1::Event& event : newer.events()) {
      after = std::max(after, event.id());
      if (event.rule() == kFlagRule && event.entry() == request.request())
        *answers.add_events() = event;
    }
    if (static_cast<uint64_t>(answers.events_size()) >= ranks) return answers;
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          answers.events_size(), " of ", Counted(ranks, "rank"),
          " answered; a rank of an older version of rankprobe does not"));
    }
    absl::SleepFor(kBetweenLooks);
  }
}

absl::Status Flag(const Globals& globals, const FlightFlags& flags) {
  const Client client(globals);
  RP_ASSIGN_OR_RETURN(const v1::ShipFlightRequest request,
                      RequestOf(client, flags));
  RP_ASSIGN_OR_RETURN(const v1::ListEventsResponse newest,
                      FetchEvents(client, request.run(), 0, 1));
  const uint64_t after = newest.events().empty() ? 0 : newest.events(0).id();
  RP_ASSIGN_OR_RETURN(const v1::ShipFlightResponse asked,
                      client.Act(&ControlStub::ShipFlight, request));
  RP_ASSIGN_OR_RETURN(const v1::ListEventsResponse answers,
                      AwaitAnswers(client, request, after, asked.ranks()));
  v1::ListEventsResponse known;
  for (const v1::Event& event : answers.events()) {
    if (event.kind() == v1::Event::KIND_TRIGGER_FIRED)
      *known.add_events() = event;
  }
  if (known.events().empty()) {
    return absl::NotFoundError(
        absl::StrCat("request ", VisibleText(flags.request), ": ",
                     VisibleText(answers.events(0).detail())));
  }
  if (PrintIf(globals.json, known)) return absl::OkStatus();
  for (const v1::Event& event : known.events()) {
    Print(stdout, "rank %d, last at step %d: %s\n", event.identity().rank(),
          event.step(), VisibleText(event.detail()));
  }
  return absl::OkStatus();
}

void AddFlags(CLI::App* verb, FlightFlags* flags) {
  verb->add_option("--run", flags->run,
                   "the run; may be left out when one is connected");
  verb->add_option("--ranks", flags->ranks, "like 0,2-3; all if left out")
      ->check(WhyNoRanges);
}

}  // namespace

void RegisterFlightCommands(const Registry& to) {
  const auto [flight, all] = to.Add<FlightFlags>(
      "flight", "write the contents of the flight recorders to the archive",
      Flight);
  AddFlags(flight, all);
  const auto [flag, one] = to.Add<FlightFlags>(
      "flag",
      "write the tokens of a server's request to the archive, with the "
      "contents of the flight recorders",
      Flag);
  AddFlags(flag, one);
  flag->add_option("REQUEST", one->request,
                   "the request's id, or the one that its client gave")
      ->required();
}

}  // namespace rankprobe
