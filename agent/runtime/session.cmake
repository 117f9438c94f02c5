set(RP_RUNTIME_SESSION_SRCS frame_queue.cc payload_memory.cc plan_gate.cc session.cc)
set(RP_RUNTIME_SESSION_TESTS frame_queue_test.cc payload_memory_test.cc plan_gate_test.cc)
