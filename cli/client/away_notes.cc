// SPDX-License-Identifier: Apache-2.0
#include "cli/client/away_notes.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "absl/synchronization/mutex.h"
#include "cli/output/output.h"

namespace rankprobe {
namespace {

std::atomic<bool> said_any{false};

void SayOnce(const std::string& why) {
  said_any = true;
  static absl::Mutex* const mutex = new absl::Mutex;
  static std::set<std::string>* const said = new std::set<std::string>;
  absl::MutexLock lock(mutex);
  if (said->insert(why).second) Print(stderr, "rankprobe: %s\n", why);
}

bool SayEach(const std::multimap<grpc::string_ref, grpc::string_ref>& trailer) {
  const auto [begin, end] = trailer.equal_range(kAwayKey);
  for (auto it = begin; it != end; ++it)
    SayOnce(std::string(it->second.data(), it->second.size()));
  return begin != end;
}

class Notes final : public grpc::experimental::Interceptor {
  void Intercept(
      grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::POST_RECV_STATUS)) {
      SayEach(*methods->GetRecvTrailingMetadata());
    }
    methods->Proceed();
  }
};

class Factory final
    : public grpc::experimental::ClientInterceptorFactoryInterface {
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new Notes;
  }
};

}  // namespace

bool SayAway(const grpc::ClientContext& context) {
  return SayEach(context.GetServerTrailingMetadata());
}

bool SaidAway() { return said_any; }

Interceptors AwayNotes() {
  Interceptors notes;
  notes.push_back(std::make_unique<Factory>());
  return notes;
}

}  // namespace rankprobe
