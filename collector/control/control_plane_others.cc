// SPDX-License-Identifier: Apache-2.0
// Two processes of one name: one that is connected has its rank for itself, and
// two starts of a program in one run are found when the second says Hello.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collector/control/control_plane.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

bool IsSameJob(const v1::Identity& a, const v1::Identity& b) {
  return !a.job().empty() && a.job() == b.job();
}

// True for a process that has ended its session and begins another before the
// collector has seen the end. The job is compared because a refusal reveals pid
// and host to the peer, but not the job.
bool IsSameProcess(const v1::Identity& a, const v1::Identity& b) {
  return IsSameJob(a, b) && a.pid() == b.pid() && a.host() == b.host();
}

}  // namespace

std::string ControlPlane::Describe(const v1::Identity& identity) {
  return absl::StrCat("process ", identity.pid(), " on ",
                      VisibleText(identity.host()));
}

absl::Status ControlPlane::CheckRankFree(const v1::Identity& identity,
                                         const std::string& self) const {
  if (!identity.has_rank()) return absl::OkStatus();
  for (const std::string& session : index_.Find(identity)) {
    const Agent& agent = agents_.at(session);
    if (session == self || !agent.connected || !agent.identity.has_rank() ||
        agent.identity.rank() != identity.rank() ||
        agent.identity.incarnation() == identity.incarnation() ||
        IsSameProcess(agent.identity, identity)) {
      continue;
    }
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", identity.rank(), " of run ", identity.run(), " is claimed by ",
        Describe(agent.identity), ", connected since ",
        absl::FormatTime("%H:%M:%S UTC", agent.connected_at,
                         absl::UTCTimeZone()),
        ", and by ", Describe(identity),
        "; a job of its own needs a name of its own, by RANKPROBE_RUN or "
        "`rankprobe run --run NAME`"));
  }
  return absl::OkStatus();
}

std::vector<v1::IncarnationRow> ControlPlane::ReadOthers(
    const v1::Identity& identity) const {
  std::vector<v1::IncarnationRow> others;
  // One rank speaks for its job: each of thousands would read thousands of rows.
  if (identity.has_rank() && identity.rank() != 0) return others;
  // It came before and has been told: a root is not told what its leaf has of it.
  bool has_records = false;
  const absl::Status status = archive_->ForEachIncarnation(
      identity.run(), [&](const v1::IncarnationRow& row) {
        const v1::Identity& other = row.identity();
        if (other.incarnation() == identity.incarnation())
          has_records = row.committed_sequence() > 0;
        if (other.incarnation() != identity.incarnation() &&
            other.has_rank() == identity.has_rank() &&
            other.rank() == identity.rank() && !IsSameJob(other, identity))
          others.push_back(row);
      });
  // A line less for the user; what cannot be read is said where it is needed.
  if (!status.ok() || has_records) others.clear();
  return others;
}

std::optional<v1::OtherProcess> ControlPlane::NewestOf(
    const std::vector<v1::IncarnationRow>& others) const {
  std::optional<v1::OtherProcess> newest;
  const auto add = [&newest](v1::OtherProcess other) {
    if (!newest.has_value() ||
        std::make_pair(newest->connected(), newest->unix_ns()) <
            std::make_pair(other.connected(), other.unix_ns()))
      newest = std::move(other);
  };
  for (const v1::IncarnationRow& row : others) {
    v1::OtherProcess other;
    *other.mutable_identity() = row.identity();
    other.set_unix_ns(row.updated_unix_ns());
    bool crashed = false;
    for (const std::string& session : index_.Find(row.identity())) {
      const Agent& agent = agents_.at(session);
      if (agent.identity.incarnation() != row.identity().incarnation())
        continue;
      if (agent.connected) {
        other.set_connected(true);
        other.set_unix_ns(absl::ToUnixNanos(agent.connected_at));
      }
      crashed = !agent.connected && !agent.farewell;
    }
    // Who comes after a process that was killed goes on for it.
    if (crashed || (!other.connected() && row.committed_sequence() == 0))
      continue;
    add(std::move(other));
  }
  return newest;
}

}  // namespace rankprobe
