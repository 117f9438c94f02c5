set(RP_COMMON_CONFIG_SRCS
  call_values.cc plan.cc config_parse.cc config_reader.cc call_filter.cc risk_level.cc names.cc json_check.cc json_text.cc record_gate.cc watch_spec.cc)
set(RP_COMMON_CONFIG_TESTS
  call_values_test.cc plan_test.cc call_filter_test.cc document_configs_test.cc names_test.cc json_check_test.cc json_text_test.cc record_gate_test.cc watch_spec_test.cc)
