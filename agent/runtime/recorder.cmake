set(RP_RUNTIME_RECORDER_SRCS bench_comparer.cc bench_json.cc bench_reference.cc
    options.cc recorder.cc recorder_calls.cc tensor_recorder.cc)
set(RP_RUNTIME_RECORDER_TESTS bench_recorder_test.cc bench_reference_test.cc recorder_test.cc)
