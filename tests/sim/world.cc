// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/world.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/sealed/sealed_reader.h"
#include "collector/sealed/store_verify.h"
#include "collector/sealed/testing/fake_leaves.h"
#include "collector/sealed/united_reader.h"
#include "common/base/monotonic_time.h"
#include "common/config/plan.h"
#include "tests/sim/judge.h"

namespace rankprobe::sim {
namespace {

// What may pass between a deadline and its return: a busy processor's time.
constexpr absl::Duration kSlack = absl::Milliseconds(500);
// With what was on its way to the rank, and what it takes to wake up.
constexpr absl::Duration kLongestSilence = absl::Milliseconds(65);
constexpr absl::Duration kVirtualLimit = absl::Minutes(10);
constexpr absl::Duration kAllSealed = absl::Seconds(30);

std::string PlanText(const ActivePlan& active) {
  if (active.plan == nullptr) return "none";
  return absl::StrCat(active.plan->dump_path, " level ",
                      static_cast<int>(active.plan->level));
}

}  // namespace

class World::Channel final : public CollectorChannel {
 public:
  Channel(World* world, std::shared_ptr<RankProcess> process)
      : world_(world), process_(std::move(process)) {
    process_->connection = nullptr;
  }

  void Session(grpc::ClientContext*, SessionReactor* reactor) override {
    Open<v1::AgentEvent, v1::Directive, v1::AgentEvent, v1::Directive>(
        "session", reactor, [](AgentService* agents, auto* context) {
          return agents->Session(context);
        });
  }
  void Upload(grpc::ClientContext*, UploadReactor* reactor) override {
    Open<grpc::ByteBuffer, v1::UploadAck, grpc::ByteBuffer, grpc::ByteBuffer>(
        "upload", reactor, [](AgentService* agents, auto* context) {
          return agents->Upload(context);
        });
  }
  void FindCollector(grpc::ClientContext*, const v1::FindCollectorRequest*,
                     v1::FoundCollector*,
                     std::function<void(const grpc::Status&)> done) override {
    const bool there = !process_->dead &&
                       world_->MachineOf(process_->rank)->collector != nullptr;
    world_->scheduler_.At(
        absl::Milliseconds(1), [there, done = std::move(done)] {
          done(there ? grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no root")
                     : grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused"));
        });
  }
  std::unique_ptr<grpc::ClientReaderInterface<v1::ReferenceChunk>> GetReference(
      grpc::ClientContext*, const v1::ReferenceRequest&) override {
    return nullptr;
  }

 private:
  template <typename CReq, typename CResp, typename SReq, typename SResp,
            typename Reactor, typename Method>
  void Open(const char* what, Reactor* reactor, const Method& method) {
    if (process_->connection == nullptr) {
      process_->connection = std::make_shared<Connection>();
      process_->connection->number = ++world_->connections_;
      process_->connection->latency = world_->scheduler_.Between(
          absl::Microseconds(50), absl::Milliseconds(2));
      world_->DamageHeaders(process_->connection.get());
    }
    const Machine* const on = world_->MachineOf(process_->rank);
    const uint64_t to = on->process();
    const std::shared_ptr<RankProcess> process = process_;
    auto stream = std::make_shared<TypedStream<CReq, CResp, SReq, SResp>>(
        &world_->scheduler_,
        absl::StrCat(what, " ", process_->rank, "/", process_->number,
                     " connection ", process_->connection->number),
        reactor,
        [on, to, process, method](grpc::CallbackServerContext* context)
            -> grpc::ServerBidiReactor<SReq, SResp>* {
          if (process->dead || on->process() != to || on->collector == nullptr)
            return nullptr;
          return method(on->collector->agents(), context);
        });
    stream->connection = process_->connection;
    world_->PlantIn(stream.get(), process_->rank, *what == 'u');
    stream->from = process_->number;
    stream->to = to;
    world_->streams_.push_back(std::move(stream));
  }

  World* const world_;
  const std::shared_ptr<RankProcess> process_;
};

World::World(uint64_t seed, Plant plant)
    : plant_(plant),
      scheduler_(seed),
      rank_clock_(&scheduler_),
      bucket_(&bucket_disk_, "/bucket") {}

World::~World() = default;

void World::DamageHeaders(Connection* connection) {
  constexpr grpc::StatusCode kCodes[] = {
      grpc::StatusCode::UNIMPLEMENTED,    grpc::StatusCode::UNAUTHENTICATED,
      grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::PERMISSION_DENIED,
      grpc::StatusCode::INTERNAL,         grpc::StatusCode::NOT_FOUND,
  };
  if (quiet_ || !scheduler_.Chance(0.1)) return;
  ++outcome_.flips;
  connection->damaged =
      grpc::Status(kCodes[scheduler_.Choose(std::size(kCodes))], "damaged");
  scheduler_.Trace(absl::StrCat("damaged connection ", connection->number));
}

void World::PlantIn(Stream* stream, int64_t rank, bool upload) const {
  if (upload && plant_ == Plant::kEarlyCommit) {
    stream->server_hurries = [](const std::string& bytes) {
      v1::UploadFrame frame;
      FromBytes(bytes, &frame);
      if (frame.sequence() == 0) return std::string();
      v1::UploadAck ack;
      ack.set_received(frame.sequence());
      ack.set_committed(frame.sequence());
      return BytesOf(ack);
    };
  }
  if (upload && plant_ == Plant::kEarlySync) {
    stream->server_lies = [](std::string* bytes) {
      v1::UploadAck ack;
      FromBytes(*bytes, &ack);
      ack.set_synced(ack.committed());
      *bytes = BytesOf(ack);
    };
  }
  if (!upload && plant_ == Plant::kWrongStep && rank == 0) {
    stream->server_lies = [](std::string* bytes) {
      v1::Directive directive;
      FromBytes(*bytes, &directive);
      if (!directive.has_prepare()) return;
      v1::PlanSpec* const plan = directive.mutable_prepare()->mutable_plan();
      plan->set_effective_at_step(plan->effective_at_step() + 1);
      *bytes = BytesOf(directive);
    };
  }
}

void World::Spawn(std::function<void()> body) {
  fibers_.push_back(scheduler_.Start(std::move(body)));
}

void World::Fault(std::string text) {
  facts_.faults.push_back(std::move(text));
}

void World::ForgetStreams() {
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                [](const auto& s) { return s->over(); }),
                 streams_.end());
}

// Ranks.

void World::StartRank(int64_t rank) {
  auto process = std::make_shared<RankProcess>();
  process->rank = rank;
  process->number = facts_.lives.size() + 1;
  process->life = facts_.lives.size();
  Life life;
  life.rank = rank;
  life.pid = 10000 + static_cast<int64_t>(process->number);
  life.incarnation = 7000 + process->number;
  facts_.lives.push_back(std::move(life));
  ranks_[static_cast<size_t>(rank)] = process;
  Spawn([this, process] { Train(process); });
}

void World::RecordStep(RankProcess* process, Session* session, int64_t step,
                       uint64_t epoch) {
  StepFact fact;
  fact.epoch = epoch;
  facts_.lives[process->life].steps[step] = fact;
  const std::vector<Payload> payloads = PayloadsOf(process->rank, step);
  std::vector<v1::LossReason> lost;
  for (const Payload& payload : payloads) {
    v1::LossReason reason = v1::LOSS_REASON_UNSPECIFIED;
    if (!session->KnowsPayload(payload.digest, payload.data.size())) {
      const MonotonicTime began = MonotonicNow();
      const int64_t began_ns = scheduler_.nanos();
      const std::shared_ptr<Connection> connection = process->connection;
      std::unique_ptr<PayloadBuffer> buffer =
          session->ReservePayload(payload.data.size(), &reason);
      if (connection != nullptr && connection == process->connection &&
          connection->stalled_since < began_ns &&
          scheduler_.nanos() < connection->stalled_until &&
          Since(began) > kLongestSilence)
        Fault(absl::StrCat("rank ", process->rank, " step ", step,
                           ": a reservation waited ",
                           absl::FormatDuration(Since(began)),
                           " for a collector that says nothing"));
      if (Since(began) > absl::Seconds(3) + kSlack)
        Fault(absl::StrCat("rank ", process->rank, " step ", step,
                           ": a reservation waited ",
                           absl::FormatDuration(Since(began))));
      if (buffer != nullptr) {
        reason = v1::LOSS_REASON_UNSPECIFIED;
        std::memcpy(buffer->data(), payload.data.data(), payload.data.size());
        session->SubmitPayload(payload.digest, std::move(buffer));
      } else {
        fact.shed = true;
      }
    }
    lost.push_back(reason);
  }
  auto records = std::make_unique<RecordBuffer>();
  records->batch()->set_step(step);
  uint64_t order = 0;
  const auto add = [&] {
    v1::Record* const record = records->Add();
    record->set_order(order++);
    return record;
  };
  v1::StepBegin* const begin = add()->mutable_step_begin();
  begin->set_has_payloads(true);
  begin->set_task("tensor");
  begin->set_level("L1");
  begin->set_plan_epoch(epoch);
  for (int call = 0; call < kCallsPerStep; ++call) {
    v1::CallPhase* const phase = add()->mutable_call();
    phase->set_entry(EntryOf(call));
    phase->set_kind(v1::CALL_KIND_API_FORWARD);
    const size_t which = static_cast<size_t>(call) % payloads.size();
    v1::TensorSummary* const tensor =
        phase->mutable_output()->add_items()->mutable_tensor();
    tensor->set_dtype(v1::DTYPE_INT8);
    tensor->add_shape(static_cast<int64_t>(payloads[which].data.size()));
    v1::PayloadRef* const ref = tensor->mutable_payload();
    ref->set_length_bytes(payloads[which].data.size());
    if (lost[which] == v1::LOSS_REASON_UNSPECIFIED) {
      ref->set_digest(payloads[which].digest.data(), 16);
    } else {
      ref->set_lost(lost[which]);
    }
  }
  v1::StepEnd* const end = add()->mutable_step_end();
  end->set_call_phases(kCallsPerStep);
  end->set_payloads(kCallsPerStep);
  if (!session->SubmitRecords(std::move(records))) fact.shed = true;
  facts_.lives[process->life].steps[step].shed = fact.shed;
}

bool World::Flush(RankProcess* process, Session* session,
                  absl::Duration deadline) {
  const v1::Durability level =
      scheduler_.Chance(0.4) ? v1::DURABILITY_SYNCED : v1::DURABILITY_COMMITTED;
  const bool last = quiet_ && deadline > absl::Seconds(30);
  const int crashes = outcome_.crashes;
  const MonotonicTime began = MonotonicNow();
  const absl::Status status =
      session->Flush(last ? v1::DURABILITY_SYNCED : level, deadline);
  if (Since(began) > deadline + kSlack) {
    Fault(absl::StrCat("rank ", process->rank, ": a flush of ",
                       absl::FormatDuration(deadline), " took ",
                       absl::FormatDuration(Since(began))));
  }
  if (process->dead) return true;
  scheduler_.Trace(absl::StrCat("flush ", process->number, " ", status.ok()));
  if (!status.ok()) return false;
  const bool synced = last || level == v1::DURABILITY_SYNCED;
  for (auto& [step, fact] : facts_.lives[process->life].steps) {
    // What it waited for may have gone while it was told.
    if (!fact.committed && outcome_.crashes != crashes) fact.at_risk = true;
    fact.committed = true;
    fact.synced =
        fact.synced || (synced && outcome_.crashes == crashes && !fact.at_risk);
  }
  return true;
}

void World::Train(const std::shared_ptr<RankProcess>& process) {
  Life& first = facts_.lives[process->life];
  SessionOptions options;
  options.collector = "collector:4711";
  options.identity.set_run(kRun);
  options.identity.set_rank(process->rank);
  options.identity.set_host("host");
  options.identity.set_pid(first.pid);
  options.identity.set_incarnation(first.incarnation);
  options.agent_version = "sim";
  options.config_json = ConfigText(0, true);
  options.queue_budget_bytes = 4 << 20;
  options.max_payload_bytes = 4 << 20;
  options.block_deadline = absl::Seconds(3);
  options.reconnect_min = absl::Milliseconds(20);
  options.reconnect_max = absl::Milliseconds(500);
  options.drain_deadline = absl::Seconds(2);
  options.lane = false;
  options.connect = [this, process](const std::string&) {
    return std::make_shared<Channel>(this, process);
  };
  auto created = Session::Create(options, &rank_clock_);
  if (!created.ok()) return Fault(std::string(created.status().message()));
  std::unique_ptr<Session> session = *std::move(created);
  auto config = ParseConfig(options.config_json, {});
  session->SetLocalPlan(std::make_shared<const Plan>(config->plan), true);
  int64_t& reached = reached_[static_cast<size_t>(process->rank)];
  while (reached + 1 < steps_per_rank_ && !process->dead) {
    // Ranks of a job are never far from each other.
    if (reached > *std::min_element(reached_.begin(), reached_.end())) {
      scheduler_.Sleep(absl::Milliseconds(5));
      continue;
    }
    const int64_t step = ++reached;
    const ActivePlan active = session->BeginStep(step);
    facts_.lives[process->life].plans.push_back(
        {step, active.epoch, active.enabled, PlanText(active)});
    scheduler_.Trace(absl::StrCat("step ", process->number, " ", step,
                                  " epoch ", active.epoch, " ",
                                  active.enabled));
    if (active.enabled && active.plan != nullptr)
      RecordStep(process.get(), session.get(), step, active.epoch);
    if (process->dead) break;
    scheduler_.Sleep(
        scheduler_.Between(absl::Milliseconds(20), absl::Milliseconds(150)));
    if (scheduler_.Chance(0.4) && !process->dead) {
      Flush(process.get(), session.get(),
            absl::Seconds(scheduler_.Chance(0.3) ? 1 : 5));
    }
  }
  while (!quiet_ && !process->dead) scheduler_.Sleep(absl::Milliseconds(100));
  if (!process->dead) {
    // The life before may be taken for alive until its connection has ended.
    bool flushed = false;
    for (int i = 0; i < 30 && !flushed && !process->dead; ++i) {
      flushed = Flush(process.get(), session.get(), absl::Seconds(60));
      if (!flushed) scheduler_.Sleep(absl::Seconds(1));
    }
    if (!flushed) {
      Fault(absl::StrCat("rank ", process->rank,
                         " could not deliver when all was well again: ",
                         session->GetStats().last_error));
    }
  }
  session.reset();
  process->ended = true;
}

bool World::AllEnded() const {
  return quiet_ && operator_ended_ && buried_ == 0 && restarts_ == 0 &&
         std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->ended; });
}

void World::Judge(Outcome* outcome) {
  // What is on the disk, and nothing else.
  sim::Judge judge(&facts_);
  const CollectorProcess* const first = machines_[0]->collector.get();
  if (first != nullptr && collector_options_.leaf) {
    JudgeLeaves(&judge);
  } else if (first != nullptr) {
    judge.CheckArchive(machines_[0]->collector->store());
  }
  for (const auto& on : machines_) {
    if (on->collector != nullptr) judge.CheckFiles(on->collector->store());
  }
  judge.CheckSwitches();
  outcome->steps = judge.whole_steps();
  outcome->applied = judge.applied();
  outcome->faults = facts_.faults;
  outcome->faults.insert(outcome->faults.end(), judge.faults().begin(),
                         judge.faults().end());
}

void World::JudgeLeaves(sim::Judge* judge) {
  testing::FakeLeaves leaves;
  for (const auto& on : machines_) {
    if (on->collector != nullptr)
      leaves.Add(on->collector->store(), on->collector->sealer());
  }
  SealedReader stored(&bucket_);
  UnitedReader united(&stored, &leaves);
  judge->CheckArchive(&united);
  // Some passes behind the quiet time there is nothing more to seal.
  scheduler_.Sleep(kAllSealed);
  const uint64_t seen = judge->whole_steps();
  SealedReader bucket(&bucket_);
  judge->CheckArchive(&bucket);
  outcome_.sealed_steps = judge->whole_steps() - seen;
  const auto report = VerifyObjectStore(
      &bucket_, ReadAllData(),
      [](const v1::VerifyReport&) { return absl::OkStatus(); });
  judge->CheckReport("bucket", report);
}

Outcome World::Run(std::vector<std::string>* trace) {
  scheduler_.KeepTrace(trace);
  collector_options_.compress = scheduler_.Chance(0.3);
  collector_options_.watch_disk = scheduler_.Chance(0.7);
  collector_options_.leaf = scheduler_.Chance(0.5);
  const bool two = collector_options_.leaf && scheduler_.Chance(0.5);
  for (uint64_t i = 0; i < (two ? 2 : 1); ++i) {
    machines_.push_back(std::make_unique<Machine>(&scheduler_));
    machines_.back()->first = kCollector + 100 * i;
    machines_.back()->disk.SetCapacity(uint64_t{1} << 40);
  }
  for (size_t rank = 0; rank < kRanks; ++rank)
    rank_machines_.push_back(machines_[rank % machines_.size()].get());
  collector_options_.frees_early = plant_ == Plant::kEarlyFree;
  steps_per_rank_ = 8 + static_cast<int64_t>(scheduler_.Choose(12));
  ranks_.resize(kRanks);
  reached_.assign(kRanks, -1);
  bool judged = false;
  Spawn([this] {
    for (const auto& on : machines_) StartCollector(on.get());
    for (int64_t rank = 0; rank < kRanks; ++rank) StartRank(rank);
    operator_ended_ = machines_.size() > 1;
    if (!operator_ended_) Spawn([this] { Operate(); });
    Spawn([this] { Disturb(); });
  });
  const auto ready = [this] { return ranks_.back() != nullptr && AllEnded(); };
  if (!scheduler_.RunUntil(ready, kVirtualLimit)) {
    Fault(absl::StrCat("not at its end after ",
                       absl::FormatDuration(kVirtualLimit)));
  }
  // Each machine goes down once more: what was synced has to be there.
  Spawn([this, &judged] {
    for (const auto& on : machines_) EndCollector(on.get(), true, false);
    while (buried_ > 0) scheduler_.Sleep(absl::Milliseconds(50));
    Judge(&outcome_);
    for (const auto& on : machines_) on->collector.reset();
    judged = true;
  });
  scheduler_.RunUntil([&] { return judged && buried_ == 0; }, absl::Minutes(2));
  if (!judged) outcome_.faults.push_back("no end");
  // Those that wait for nothing any more.
  scheduler_.RunUntil([this] { return scheduler_.fibers() == 0; },
                      absl::Minutes(2));
  outcome_.trace_hash = scheduler_.trace_hash();
  outcome_.events = scheduler_.events();
  outcome_.virtual_time = absl::Nanoseconds(scheduler_.nanos());
  return outcome_;
}

}  // namespace rankprobe::sim
