// SPDX-License-Identifier: Apache-2.0
// deliver: sends the data that ended processes left in a spool directory.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/runtime/session/spool_delivery.h"
#include "cli/app.h"
#include "cli/exit_codes.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {
namespace {

std::string WhoseSpool(const v1::Identity& identity) {
  const std::string rank =
      identity.has_rank() ? absl::StrCat("rank ", identity.rank(), ", ") : "";
  return VisibleText(absl::StrCat("run ", identity.run(), " ", rank, "pid ",
                                  identity.pid(), " on ", identity.host()));
}

absl::Status Deliver(const Globals& globals, const std::string& directory,
                     int* exit_code) {
  if (!globals.object_store.empty()) {
    return absl::InvalidArgumentError(
        "deliver sends to a collector: name it with --collector, not "
        "--object-store");
  }
  SpoolDeliveryOptions options;
  options.directory = directory;
  options.collector = globals.collector;
  options.security = globals.security;
  options.patience = absl::Seconds(globals.timeout_seconds);
  RP_ASSIGN_OR_RETURN(const SpoolDelivery done, DeliverSpools(options));
  if (!done.left.empty() || done.passed_over > 0) *exit_code = kPartial;
  if (globals.json) {
    v1::DeliverReport report;
    report.set_delivered(done.delivered.size());
    report.set_left(done.left.size());
    report.set_passed_over(done.passed_over);
    for (const SpoolDelivery::Left& left : done.left) {
      v1::DeliverReport::Left& spool = *report.add_left_spools();
      *spool.mutable_identity() = left.identity;
      spool.set_reason(left.reason);
    }
    PrintJson(ToJson(report));
    return absl::OkStatus();
  }
  for (const v1::Identity& identity : done.delivered)
    Print(stdout, "delivered: %s\n", WhoseSpool(identity).c_str());
  for (const SpoolDelivery::Left& left : done.left) {
    Print(stdout, "left: %s: %s\n", WhoseSpool(left.identity).c_str(),
          VisibleText(left.reason).c_str());
  }
  if (done.passed_over > 0) {
    Print(stdout, "%d not opened: others made them or can change them\n",
          done.passed_over);
  }
  if (done.delivered.empty() && done.left.empty() && done.passed_over == 0)
    Print(stdout, "nothing to deliver in %s\n", directory.c_str());
  return absl::OkStatus();
}

}  // namespace

void RegisterDeliverCommand(const Registry& to) {
  const auto [deliver, directory] = to.Add<std::string>(
      "deliver",
      "send the collector the records that killed processes left in a "
      "spool directory",
      Deliver);
  deliver
      ->add_option("directory", *directory,
                   "the RANKPROBE_SPOOL of these processes; spools of running "
                   "processes are not touched")
      ->required();
}

}  // namespace rankprobe
