// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/leaf_questions.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collector/rpc/server_stream.h"
#include "common/base/random_bytes.h"
#include "common/rpc/checked_message.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr size_t kIdBytes = 16;
// Limit for the names of a leaf's runs; beyond it the leaf may have data of any
// run.
constexpr size_t kMaxRunsBytes = 256 << 10;
constexpr size_t kMaxBegan = 1000;
constexpr size_t kMaxRunBytes = 255;

std::string InSeconds(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Seconds(time + absl::Milliseconds(999)),
                      " s");
}

}  // namespace

// Connects a caller and the stream of the answer. A part waits here until it is
// taken; then the next one is read.
class LeafQuestions::Pending {
 public:
  Pending(std::string leaf, std::string address, std::string who)
      : leaf(std::move(leaf)),
        address(std::move(address)),
        who(std::move(who)) {}

  const std::string leaf, address, who;

  // Called by the reader: waits for `time` from `since`, and as long again each
  // time the leaf reports that the question is queued, but not beyond `end`.
  // Returns false if the time is over.
  bool AwaitPart(MonotonicTime since, absl::Duration time, MonotonicTime end,
                 v1::LiveAnswer* part, bool* ended, absl::Status* status);
  void WaitsForItsTurn();
  void GiveUp();
  // Called by the stream. Returns false if no caller waits any more.
  bool Begin(Stream* stream);
  // The last part comes with the status of the answer, because the caller must
  // not read on after it.
  void Put(v1::LiveAnswer part, bool last, const absl::Status& status);
  void End(const absl::Status& status);
  void Drop();

 private:
  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  std::optional<v1::LiveAnswer> waiting_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime turn_told_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

class LeafQuestions::Stream final
    : public grpc::ServerReadReactor<v1::LiveAnswer> {
 public:
  Stream(LeafQuestions* questions, std::string who)
      : questions_(questions), who_(std::move(who)) {
    ReadNext();
  }

  void ReadNext() {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void FinishOnce(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (!std::exchange(finished_, true)) Finish(ToGrpc(status));
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      if (pending_ != nullptr) {
        pending_->End(absl::UnavailableError(absl::StrCat(
            "leaf ", pending_->address, " disconnected during an answer")));
      }
      return FinishOnce(absl::OkStatus());
    }
    if (IsDamaged(incoming_)) {
      const absl::Status damaged = absl::DataLossError(
          "an answer was damaged in transit: it does not match its checksum");
      if (pending_ != nullptr) {
        pending_->End(absl::UnavailableError(
            absl::StrCat("leaf ", pending_->address, ": ", damaged.message())));
      }
      return FinishOnce(damaged);
    }
    if (pending_ == nullptr) {
      auto pending = questions_->Take(incoming_.id(), who_);
      if (pending == nullptr || !pending->Begin(this)) {
        return FinishOnce(
            absl::NotFoundError("the question of this answer has ended"));
      }
      pending_ = std::move(pending);
    }
    if (!incoming_.has_end()) {
      return pending_->Put(std::move(incoming_), /*last=*/false,
                           absl::OkStatus());
    }
    const v1::LiveEnd& end = incoming_.end();
    absl::Status status;
    if (end.code() != 0) {
      status = absl::Status(static_cast<absl::StatusCode>(end.code()),
                            absl::StrCat("leaf ", pending_->address, ": ",
                                         VisibleText(end.message())));
    }
    pending_->Put(std::move(incoming_), /*last=*/true, status);
    FinishOnce(absl::OkStatus());
  }
  void OnCancel() override { FinishOnce(absl::CancelledError("cancelled")); }
  void OnDone() override {
    if (pending_ != nullptr) {
      pending_->Drop();
      // Has no effect if the answer has ended already.
      pending_->End(absl::UnavailableError(absl::StrCat(
          "leaf ", pending_->address, " disconnected during an answer")));
    }
    delete this;
  }

  LeafQuestions* const questions_;
  const std::string who_;
  // Set by a read; reads do not overlap.
  std::shared_ptr<Pending> pending_;
  v1::LiveAnswer incoming_;
  absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

void LeafQuestions::Pending::WaitsForItsTurn() {
  absl::MutexLock lock(&mutex_);
  turn_told_ = MonotonicNow();
}

bool LeafQuestions::Pending::AwaitPart(MonotonicTime since, absl::Duration time,
                                       MonotonicTime end, v1::LiveAnswer* part,
                                       bool* ended, absl::Status* status) {
  absl::MutexLock lock(&mutex_);
  const auto is_there = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return waiting_.has_value() || ended_;
  };
  MonotonicTime until = std::min(since + absl::ToChronoNanoseconds(time), end);
  while (!changed_.WaitFor(&mutex_, Until(until), is_there)) {
    const MonotonicTime later =
        std::min(turn_told_ + absl::ToChronoNanoseconds(time), end);
    if (later <= MonotonicNow()) return false;
    until = later;
  }
  *ended = !waiting_.has_value();
  if (*ended) {
    *status = status_;
    return true;
  }
  *part = *std::move(waiting_);
  waiting_.reset();
  if (stream_ != nullptr && !ended_) stream_->ReadNext();
  return true;
}

void LeafQuestions::Pending::GiveUp() {
  absl::MutexLock lock(&mutex_);
  given_up_ = true;
  if (stream_ != nullptr)
    stream_->FinishOnce(absl::CancelledError("the question has ended"));
}

bool LeafQuestions::Pending::Begin(Stream* stream) {
  absl::MutexLock lock(&mutex_);
  if (given_up_) return false;
  stream_ = stream;
  return true;
}

void LeafQuestions::Pending::Put(v1::LiveAnswer part, bool last,
                                 const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  waiting_ = std::move(part);
  if (last && !ended_) {
    ended_ = true;
    status_ = status;
  }
  changed_.NotifyAll();
}

void LeafQuestions::Pending::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  ended_ = true;
  status_ = status;
  changed_.NotifyAll();
}

void LeafQuestions::Pending::Drop() {
  absl::MutexLock lock(&mutex_);
  stream_ = nullptr;
}

// The caller's side.
class LeafQuestions::Reader final : public LiveLeaves::Answer {
 public:
  Reader(LeafQuestions* questions, std::string id,
         std::shared_ptr<Pending> pending, bool is_payload)
      : questions_(questions),
        id_(std::move(id)),
        pending_(std::move(pending)),
        end_(is_payload ? MonotonicAfter(absl::InfiniteDuration())
                        : MonotonicAfter(questions->options_.answer_time)) {}
  ~Reader() override {
    questions_->Forget(id_);
    pending_->GiveUp();
  }

  absl::StatusOr<bool> Next(v1::LiveAnswer* part) override {
    bool ended = false;
    absl::Status status;
    // The first part is timed from the question: several leaves are asked at
    // once and read one after another, and those that hang do so at the same
    // time.
    const MonotonicTime since = heard_ ? MonotonicNow() : asked_;
    heard_ = true;
    if (!pending_->AwaitPart(since, questions_->options_.part_time, end_, part,
                             &ended, &status)) {
      return absl::UnavailableError(
          absl::StrCat("leaf ", pending_->address, " has not answered for ",
                       InSeconds(questions_->options_.part_time)));
    }
    if (!ended) return true;
    if (!status.ok()) return status;
    return false;
  }

 private:
  LeafQuestions* const questions_;
  const std::string id_;
  const std::shared_ptr<Pending> pending_;
  const MonotonicTime asked_ = MonotonicNow();
  const MonotonicTime end_;
  bool heard_ = false;
};

std::string LeafQuestions::AwayText(const Known& leaf,
                                    MonotonicTime now) const {
  const absl::Duration silent = absl::FromChrono(now - leaf.heard);
  if (leaf.link == 0) {
    return absl::StrCat("leaf ", leaf.address, " disconnected ",
                        InSeconds(silent), " ago");
  }
  if (silent < options_.silence) return "";
  return absl::StrCat("leaf ", leaf.address, " has been silent for ",
                      InSeconds(silent));
}

std::vector<LiveLeaves::Leaf> LeafQuestions::Leaves() {
  absl::MutexLock lock(&mutex_);
  // Before its leaves have connected, a root would answer from the store alone
  // without knowing it.
  never_.WaitFor(&mutex_,
                 options_.settling - absl::FromChrono(MonotonicNow() - began_),
                 [] { return false; });
  const MonotonicTime now = MonotonicNow();
  std::vector<Leaf> leaves;
  for (const auto& [name, leaf] : leaves_)
    leaves.push_back({name, leaf.address, AwayText(leaf, now), leaf.runs});
  return leaves;
}

std::unique_ptr<LiveLeaves::Answer> LeafQuestions::Ask(
    const std::string& leaf, v1::LiveQuestion question) {
  std::string id = RandomBytes(kIdBytes);
  const bool is_payload = question.has_payload();
  v1::RootNote note;
  v1::LiveQuestion* const sent = note.add_questions();
  *sent = std::move(question);
  sent->set_id(id);
  SendFn send;
  std::shared_ptr<Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
    const auto known = leaves_.find(leaf);
    if (known == leaves_.end()) {
      pending = std::make_shared<Pending>(leaf, leaf, "");
      pending->End(absl::UnavailableError(
          absl::StrCat("there is no leaf ", leaf, " any more")));
    } else {
      pending = std::make_shared<Pending>(leaf, known->second.address,
                                          known->second.who);
      const std::string away = AwayText(known->second, MonotonicNow());
      if (away.empty()) {
        pending_[id] = pending;
        send = known->second.send;
      } else {
        pending->End(absl::UnavailableError(away));
      }
    }
  }
  if (send) send(note);
  return std::make_unique<Reader>(this, std::move(id), std::move(pending),
                                  is_payload);
}

void LeafQuestions::Note(const v1::LeafReport& report, Known* leaf) {
  leaf->address = report.address();
  leaf->heard = MonotonicNow();
  if (report.only_events()) return;
  size_t bytes = 0;
  for (const std::string& run : report.runs()) bytes += run.size() + 8;
  if (report.runs_left_out() || bytes > kMaxRunsBytes) {
    leaf->runs = nullptr;
    return;
  }
  std::vector<std::string> runs(report.runs().begin(), report.runs().end());
  std::sort(runs.begin(), runs.end());
  for (auto it = leaf->began.begin(); it != leaf->began.end();) {
    it = std::binary_search(runs.begin(), runs.end(), *it)
             ? leaf->began.erase(it)
             : std::next(it);
  }
  runs.insert(runs.end(), leaf->began.begin(), leaf->began.end());
  std::sort(runs.begin(), runs.end());
  leaf->runs =
      std::make_shared<const std::vector<std::string>>(std::move(runs));
}

void LeafQuestions::Linked(uint64_t link, const v1::LeafReport& report,
                           const std::string& who, SendFn send) {
  absl::MutexLock lock(&mutex_);
  if (leaves_.size() >= options_.max_leaves &&
      leaves_.find(report.leaf()) == leaves_.end()) {
    // Only disconnected leaves are removed: the registry limits the connected
    // ones.
    auto oldest = leaves_.end();
    for (auto it = leaves_.begin(); it != leaves_.end(); ++it) {
      if (it->second.link == 0 &&
          (oldest == leaves_.end() || it->second.heard < oldest->second.heard))
        oldest = it;
    }
    if (oldest != leaves_.end()) leaves_.erase(oldest);
  }
  Known& leaf = leaves_[report.leaf()];
  leaf.link = link;
  leaf.who = who;
  leaf.send = std::move(send);
  Note(report, &leaf);
}

void LeafQuestions::Heard(uint64_t link, const v1::LeafReport& report) {
  absl::MutexLock lock(&mutex_);
  const auto leaf = leaves_.find(report.leaf());
  if (leaf == leaves_.end() || leaf->second.link != link) return;
  Note(report, &leaf->second);
  for (const std::string& id : report.waiting()) {
    const auto it = pending_.find(id);
    if (it != pending_.end() && it->second->leaf == report.leaf())
      it->second->WaitsForItsTurn();
  }
}

void LeafQuestions::Began(uint64_t link, const std::string& run) {
  absl::MutexLock lock(&mutex_);
  for (auto& [name, leaf] : leaves_) {
    if (leaf.link != link || leaf.runs == nullptr ||
        std::binary_search(leaf.runs->begin(), leaf.runs->end(), run))
      continue;
    if (leaf.began.size() >= kMaxBegan || run.size() > kMaxRunBytes) {
      leaf.runs = nullptr;
      continue;
    }
    leaf.began.insert(run);
    std::vector<std::string> runs = *leaf.runs;
    runs.insert(std::upper_bound(runs.begin(), runs.end(), run), run);
    leaf.runs =
        std::make_shared<const std::vector<std::string>>(std::move(runs));
  }
}

void LeafQuestions::Gone(uint64_t link) {
  absl::MutexLock lock(&mutex_);
  for (auto& [name, leaf] : leaves_) {
    if (leaf.link != link) continue;
    leaf.link = 0;
    leaf.send = nullptr;
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->second->leaf != name) {
        ++it;
        continue;
      }
      it->second->End(absl::UnavailableError(absl::StrCat(
          "leaf ", leaf.address, " disconnected before it answered")));
      it = pending_.erase(it);
    }
  }
}

std::shared_ptr<LeafQuestions::Pending> LeafQuestions::Take(
    const std::string& id, const std::string& who) {
  absl::MutexLock lock(&mutex_);
  const auto it = pending_.find(id);
  if (it == pending_.end() || it->second->who != who) return nullptr;
  std::shared_ptr<Pending> pending = std::move(it->second);
  pending_.erase(it);
  return pending;
}

void LeafQuestions::Forget(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  pending_.erase(id);
}

grpc::ServerReadReactor<v1::LiveAnswer>* LeafQuestions::Receive(
    const std::string& who) {
  return new Stream(this, who);
}

}  // namespace rankprobe
