set(RP_RUNTIME_SESSION_SRCS collector_link.cc config_file.cc event_outbox.cc flight_ring.cc trigger_engine.cc watcher.cc frame_encoding.cc frame_queue.cc frame_queue_offers.cc frame_queue_losses.cc record_cutter.cc payload_memory.cc
    plan_gate.cc session.cc spool.cc spool_drain.cc)
set(RP_RUNTIME_SESSION_TESTS watcher_test.cc frame_queue_test.cc record_cutter_test.cc payload_memory_test.cc plan_gate_test.cc config_file_test.cc
    spool_test.cc ../../common/testing/fault_file_system.cc)
