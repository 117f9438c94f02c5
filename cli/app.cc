// SPDX-License-Identifier: Apache-2.0
// The verbs, and the flags that each of them takes.
#include "cli/app.h"

#include <CLI/CLI.hpp>

#include "cli/flags/numbers.h"

namespace rankprobe {

void RegisterCommands(CLI::App* app, Globals* globals, ParsedCommand* command) {
  const Registry to(app, globals, command);
  RegisterAttachCommand(to);
  RegisterRunCommands(to);
  RegisterStatusCommand(to);
  RegisterSwitchCommands(to);
  RegisterMonitorCommands(to);
  RegisterFlightCommands(to);
  RegisterExportCommand(to);
  RegisterLedgerCommand(to);
  RegisterQueryCommand(to);
  RegisterScanCommand(to);
  RegisterDiagnoseCommand(to);
  RegisterViewCommand(to);
  RegisterArchiveCommands(to);
  RegisterDeliverCommand(to);
  RegisterCompareCommand(to);
  RegisterFirstDivergenceCommand(to);
  RegisterOverflowCheckCommand(to);
  RegisterConfigCheckCommand(to);
  RegisterReplicasCommand(to);
  RegisterGraphCommand(to);
  RegisterAccCheckCommand(to);
  RegisterAlignCommand(to);
  RegisterSchemaCommand(to);
}

void AddGlobals(CLI::App* app, Globals* globals) {
  app->add_option("--collector", globals->collector,
                  "the collector, or unix:PATH of its Unix socket, or the "
                  "dump_path of a job with a private one (else "
                  "RANKPROBE_COLLECTOR, else 127.0.0.1:7411)")
      ->type_name("HOST:PORT");
  app->add_option(
         "--object-store", globals->object_store,
         "read what collectors have stored there, without a collector: "
         "s3://BUCKET/PREFIX or the absolute path of a directory")
      ->type_name("URL");
  app->add_flag("--json", globals->json, "one line of JSON on standard output");
  app->add_option("--tls-ca", globals->files.tls_ca,
                  "PEM certificates that verify the collector (else "
                  "RANKPROBE_TLS_CA); turns TLS on")
      ->type_name("FILE");
  app->add_option(
         "--tls-cert", globals->files.tls_cert,
         "client certificate, for mutual TLS (else RANKPROBE_TLS_CERT)")
      ->type_name("FILE");
  app->add_option("--tls-key", globals->files.tls_key,
                  "its key (else RANKPROBE_TLS_KEY)")
      ->type_name("FILE");
  app->add_option("--tls-server-name", globals->files.tls_server_name,
                  "name in the collector's certificate, if it differs from the "
                  "host (else RANKPROBE_TLS_SERVER_NAME)")
      ->type_name("NAME");
  app->add_option("--token-file", globals->files.token_file,
                  "file with a bearer token (else RANKPROBE_TOKEN_FILE)")
      ->type_name("FILE");
  app->add_option("--timeout", globals->timeout_seconds,
                  "seconds to wait for the collector")
      ->type_name("SECONDS")
      ->check(NumberWithin(0.1, 86400.0));
}

}  // namespace rankprobe
