// The flags that every verb takes.
#include <CLI/CLI.hpp>

#include "cli/verbs.h"

namespace rankprobe {

void AddGlobals(CLI::App* app, Globals* globals) {
  app->add_option("--collector", globals->collector,
                  "HOST:PORT (else RANKPROBE_COLLECTOR, else 127.0.0.1:7411)");
  app->add_flag("--json", globals->json, "one line of JSON on standard output");
  app->add_option("--tls-ca", globals->files.tls_ca,
                  "PEM certificates that vouch for the collector (else "
                  "RANKPROBE_TLS_CA): speak TLS");
  app->add_option("--tls-cert", globals->files.tls_cert,
                  "own certificate, for mutual TLS (else RANKPROBE_TLS_CERT)");
  app->add_option("--tls-key", globals->files.tls_key,
                  "its key (else RANKPROBE_TLS_KEY)");
  app->add_option("--tls-server-name", globals->files.tls_server_name,
                  "name in the collector's certificate, if it is another one "
                  "(else RANKPROBE_TLS_SERVER_NAME)");
  app->add_option("--token-file", globals->files.token_file,
                  "file with a bearer token (else RANKPROBE_TOKEN_FILE)");
  app->add_option("--timeout", globals->timeout_seconds,
                  "seconds to wait for the collector")
      ->check(CLI::Range(0.1, 86400.0));
}

}  // namespace rankprobe
