find_package(CLI11 REQUIRED)
rankprobe_library(rp_collector
  SRCS archive_service.cc connection_gate.cc control_service.cc http_text_server.cc janitor.cc metrics.cc server.cc server_config.cc stream_sink.cc worker_pool.cc
  DEPS rp_logger rp_auth rp_ingest rp_control rp_archive rp_store CLI11::CLI11 gRPC::grpc++ gRPC::grpc++_reflection)
rankprobe_binary(rankprobed SRCS main.cc DEPS rp_collector)
rankprobe_test(collector_test SRCS connection_gate_test.cc metrics_test.cc stream_sink_test.cc DEPS rp_collector)
