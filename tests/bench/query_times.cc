// SPDX-License-Identifier: Apache-2.0
// Latency of questions about a long run: RPCs to a running
// collector, each read to its end, over the runs that bench_archive makes.
//   bench_query HOST:PORT ROUNDS [QUESTION..]   default: all questions
// Prints of each question
//   name milliseconds [milliseconds ..]
// one of each in turn, and the bytes of the last answer on stderr.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "common/base/monotonic_time.h"
#include "rankprobe/v1/archive.grpc.pb.h"

namespace rankprobe {
namespace {

constexpr char kCall[] = "Module.layers.7.block.3.Linear.forward.0.output.0";

struct Question {
  std::string name;
  // Bytes of the answer; ends the program where there is none.
  std::function<size_t()> ask;
  std::vector<double> times;
  size_t bytes = 0;
};

template <typename Reply, typename Reader>
size_t Drain(Reader reader) {
  size_t bytes = 0;
  for (Reply reply; reader->Read(&reply);) bytes += reply.ByteSizeLong();
  const grpc::Status status = reader->Finish();
  if (!status.ok() || bytes == 0) {
    std::fprintf(stderr, "bench_query: %s\n", status.error_message().c_str());
    std::exit(1);
  }
  return bytes;
}

std::vector<Question> Questions(v1::ArchiveService::Stub* archive) {
  std::vector<Question> out;
  const auto grid = [&](const std::string& name,
                        const v1::QueryGridRequest& request) {
    out.push_back({name, [archive, request] {
                     grpc::ClientContext context;
                     return Drain<v1::GridReply>(
                         archive->QueryGrid(&context, request));
                   }});
  };
  v1::QueryGridRequest overview;
  overview.set_run("ranks");
  overview.set_rows(v1::GRID_ROWS_RANK);
  overview.set_packed(true);
  grid("overview", overview);
  v1::QueryGridRequest part = overview;
  part.set_max_cells(1000000);
  part.set_first_step(5017);
  part.set_last_step(5216);
  grid("overview_200_steps", part);
  v1::QueryGridRequest rank = overview;
  rank.add_ranks(3);
  grid("one_rank", rank);
  v1::QueryGridRequest call;
  call.set_run("calls");
  call.set_match(kCall);
  call.set_packed(true);
  grid("one_call", call);
  v1::QuerySeriesRequest series;
  *series.mutable_grid() = call;
  out.push_back({"one_call_series", [archive, series] {
                   grpc::ClientContext context;
                   return Drain<v1::SeriesReply>(
                       archive->QuerySeries(&context, series));
                 }});
  return out;
}

int Run(int argc, char** argv) {
  int rounds = 0;
  if (argc < 3 || !absl::SimpleAtoi(argv[2], &rounds) || rounds < 1) {
    std::fprintf(stderr, "bench_query HOST:PORT ROUNDS [QUESTION..]\n");
    return 2;
  }
  const std::vector<std::string> wanted(argv + 3, argv + argc);
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  const auto archive = v1::ArchiveService::NewStub(channel);
  // The connection is not part of the first answer.
  if (!channel->WaitForConnected(std::chrono::system_clock::now() +
                                 std::chrono::seconds(30))) {
    std::fprintf(stderr, "bench_query: no collector at %s\n", argv[1]);
    return 1;
  }
  std::vector<Question> questions = Questions(archive.get());
  for (int round = 0; round < rounds; ++round) {
    for (Question& question : questions) {
      if (!wanted.empty() && !absl::c_linear_search(wanted, question.name))
        continue;
      const MonotonicTime began = MonotonicNow();
      question.bytes = question.ask();
      question.times.push_back(absl::ToDoubleMilliseconds(Since(began)));
    }
  }
  for (const Question& question : questions) {
    if (question.times.empty()) continue;
    std::printf("%s", question.name.c_str());
    for (const double ms : question.times) std::printf(" %.3f", ms);
    std::printf("\n");
    std::fprintf(stderr, "%s: %zu bytes\n", question.name.c_str(),
                 question.bytes);
  }
  return 0;
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) { return rankprobe::Run(argc, argv); }
