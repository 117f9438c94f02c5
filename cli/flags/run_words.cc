// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/run_words.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kRun = "run:";

bool Has(const CLI::App& verb, const char* flag) {
  return verb.get_option_no_throw(flag) != nullptr;
}

// Whether the verb takes a named run: a verb that takes dumps reads run:NAME
// itself.
bool TakesRun(const CLI::App& verb) {
  return Has(verb, "--run") && !verb.get_prefix_command();
}

bool TakesValue(const CLI::App& verb, const std::string& word) {
  if (!absl::StartsWith(word, "-") || absl::StrContains(word, '='))
    return false;
  const CLI::Option* const option = verb.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_max() > 0;
}

bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
}

// True for "5" and "0-4".
bool IsSteps(absl::string_view text) {
  const size_t dash = text.find('-');
  return dash == absl::string_view::npos ? IsNumber(text)
                                         : IsNumber(text.substr(0, dash)) &&
                                               IsNumber(text.substr(dash + 1));
}

std::string CompareCommands(const std::string& one, const std::string& other) {
  return absl::StrCat(
      "two runs are compared by `rankprobe first-divergence run:", one,
      " run:", other, "` or `rankprobe diagnose run:", one,
      " --reference run:", other, "`");
}

absl::StatusOr<std::vector<std::string>> FlagsOf(const CLI::App& verb,
                                                 absl::string_view run) {
  const size_t at = run.rfind('@');
  const absl::string_view steps =
      at == absl::string_view::npos ? absl::string_view() : run.substr(at + 1);
  if (!IsSteps(steps))
    return std::vector<std::string>{"--run", std::string(run)};
  std::vector<std::string> out = {"--run", std::string(run.substr(0, at))};
  if (Has(verb, "--from-step")) {
    const size_t dash = steps.find('-');
    out.insert(out.end(),
               {"--from-step", std::string(steps.substr(0, dash)), "--to-step",
                std::string(dash == absl::string_view::npos
                                ? steps
                                : steps.substr(dash + 1))});
    return out;
  }
  if (const CLI::Option* const option = verb.get_option_no_throw("--steps");
      option != nullptr && option->get_items_expected_max() > 0) {
    out.insert(out.end(), {"--steps", std::string(steps)});
    return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("run:", run, ": ", verb.get_name(),
                   " is about all steps of a run: --run ", run.substr(0, at)));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WithRunFlags(
    const CLI::App& root, std::vector<std::string> words) {
  const CLI::App* verb = &root;
  std::vector<std::string> out;
  std::string named;
  for (std::string& word : words) {
    const auto below = verb->get_subcommands(
        [&word](const CLI::App* sub) { return sub->get_name() == word; });
    if (!below.empty() && !word.empty()) {
      verb = below.front();
      out.push_back(std::move(word));
      continue;
    }
    absl::string_view run = word;
    if (!TakesRun(*verb) || !absl::ConsumePrefix(&run, kRun) || run.empty() ||
        (!out.empty() && TakesValue(*verb, out.back()))) {
      out.push_back(std::move(word));
      continue;
    }
    if (!named.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(verb->get_name(), " is about one run; ",
                       CompareCommands(named, std::string(run))));
    }
    named = std::string(run);
    auto flags = FlagsOf(*verb, run);
    if (!flags.ok()) return flags.status();
    out.insert(out.end(), std::make_move_iterator(flags->begin()),
               std::make_move_iterator(flags->end()));
  }
  return out;
}

std::string RunAdvice(const CLI::App& verb) {
  if (!TakesRun(verb)) return "";
  std::vector<std::string> words;
  for (const CLI::Option* const option : verb.get_options()) {
    if (!option->get_positional()) continue;
    for (const std::string& word : option->results()) words.push_back(word);
  }
  for (const std::string& word : verb.remaining()) {
    if (!absl::StartsWith(word, "-")) words.push_back(word);
  }
  const CLI::Option* const run = verb.get_option_no_throw("--run");
  const std::string named =
      absl::StrCat("; a run is named by --run NAME or run:NAME");
  if (words.size() >= 2 && run->count() == 0)
    return absl::StrCat(named, "; ", CompareCommands(words[0], words[1]));
  return run->count() == 0 ? named : "";
}

}  // namespace rankprobe
