// The flags that every verb takes.
#include <CLI/CLI.hpp>

#include "cli/verbs.h"

namespace rankprobe {

void AddGlobals(CLI::App* app, Globals* globals) {
  app->add_option("--collector", globals->collector,
                  "HOST:PORT (else RANKPROBE_COLLECTOR, else 127.0.0.1:7411)");
  app->add_flag("--json", globals->json, "one line of JSON on standard output");
  app->add_option("--timeout", globals->timeout_seconds,
                  "seconds to wait for the collector")
      ->check(CLI::Range(0.1, 86400.0));
}

}  // namespace rankprobe
