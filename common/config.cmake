set(RP_COMMON_CONFIG_SRCS
  plan.cc config_parse.cc config_reader.cc call_filter.cc risk_level.cc names.cc json_text.cc)
set(RP_COMMON_CONFIG_TESTS
  plan_test.cc call_filter_test.cc names_test.cc json_text_test.cc)
