set(RP_COMMON_IO_SRCS crc32c.cc fork_guard.cc host_port.cc posix_file_system.cc)
set(RP_COMMON_IO_TESTS crc32c_test.cc fork_guard_test.cc file_system_test.cc host_port_test.cc)
