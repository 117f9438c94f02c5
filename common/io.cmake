set(RP_COMMON_IO_SRCS channel_security.cc content_hash.cc crc32c.cc fork_guard.cc host_port.cc posix_file_system.cc
    published_ranks.cc random_bytes.cc staged_tree.cc visible_text.cc)
set(RP_COMMON_IO_TESTS
  channel_security_test.cc crc32c_test.cc fork_guard_test.cc file_system_test.cc host_port_test.cc
  staged_tree_test.cc visible_text_test.cc)
