# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target. Code in this tree is built with
# warnings as errors; clang also checks the lock annotations.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

find_program(LLD_PROGRAM ld.lld)
if(LLD_PROGRAM)
  add_link_options(-fuse-ld=lld)
endif()

set(RANKPROBE_SANITIZER "" CACHE STRING "address, thread or undefined; empty for none")
if(RANKPROBE_SANITIZER)
  set(_san ${RANKPROBE_SANITIZER})
  if(_san STREQUAL "address")
    set(_san "address,undefined")
  endif()
  add_compile_options(-fsanitize=${_san} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${_san})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Relative to the build directory, where the compiler runs: ccache would miss
    # in each new clone if the path of the clone stood on the command line.
    file(RELATIVE_PATH _ignorelist ${CMAKE_BINARY_DIR} ${CMAKE_CURRENT_LIST_DIR}/sanitizer_ignorelist.txt)
    add_compile_options(-fsanitize-ignorelist=${_ignorelist})
  endif()
endif()

set(RANKPROBE_WARNINGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Werror)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # RapidJSON's iterators compare both ways round in C++20.
  list(APPEND RANKPROBE_WARNINGS -Wno-ambiguous-reversed-operator)
  list(APPEND RANKPROBE_WARNINGS -Wthread-safety -Wthread-safety-beta -Wno-thread-safety-negative)
else()
  # GCC 12 reports false positives of these in protobuf and Abseil headers.
  list(APPEND RANKPROBE_WARNINGS -Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
endif()
