set(RP_RUNTIME_RECORDER_SRCS options.cc recorder.cc tensor_recorder.cc)
    set(RP_RUNTIME_RECORDER_TESTS recorder_test.cc)
