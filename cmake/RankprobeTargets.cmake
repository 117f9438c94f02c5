# SPDX-License-Identifier: Apache-2.0
# rankprobe_library(NAME SRCS .. DEPS ..), rankprobe_test(NAME SRCS .. DEPS ..),
# rankprobe_benchmark(NAME SRCS .. DEPS ..), rankprobe_binary(NAME SRCS .. DEPS ..).
include_guard()

function(_rankprobe_common target)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/rankprobe>)
  target_compile_options(${target} PRIVATE ${RANKPROBE_WARNINGS})
endfunction()

# Executables only; the functions of the shim come before the library's.
function(_rankprobe_sanitized target)
  if(RANKPROBE_SANITIZER STREQUAL "thread")
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/tsan_absl_mutex.cc)
    target_link_libraries(${target} PRIVATE absl::synchronization ${CMAKE_DL_LIBS})
    target_link_options(${target} PRIVATE -rdynamic)
  endif()
endfunction()

function(rankprobe_library name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SRCS})
  target_link_libraries(${name} PUBLIC ${A_DEPS})
  _rankprobe_common(${name})
endfunction()

# A library whose sources stay objects of their own in a unity build. The Python
# extension _analysis takes parts of it that need no messages: a message that
# _native registers too, in the same process, ends it.
function(rankprobe_separate_objects name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
endfunction()

function(rankprobe_binary name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE ${A_DEPS})
  _rankprobe_common(${name})
  _rankprobe_sanitized(${name})
endfunction()

# All that stage unit runs: the test programs and the fuzzers.
add_custom_target(unit_tests)

# One executable per room keeps link time down: list all x_test.cc of a
# directory in one rankprobe_test. ctest runs a program as a whole, because
# starting one process for each of 1,500 tests takes longer than most of them;
# its report names the tests (tests/lib/count_junit.py).
function(rankprobe_test name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  if(NOT RANKPROBE_BUILD_TESTS)
    return()
  endif()
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE ${A_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  _rankprobe_common(${name})
  # Compiling a test takes three times as long with optimization, and the code
  # under test has it.
  target_compile_options(${name} PRIVATE -O0)
  _rankprobe_sanitized(${name})
  add_dependencies(unit_tests ${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600
    ENVIRONMENT GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/gtest/${name}.xml)
endfunction()

function(rankprobe_benchmark name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  if(NOT RANKPROBE_BUILD_BENCH)
    return()
  endif()
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE ${A_DEPS} benchmark::benchmark)
  _rankprobe_common(${name})
endfunction()
