# SPDX-License-Identifier: Apache-2.0
# The Python that extensions are built for: the one named by Python3_EXECUTABLE
# (scikit-build-core does), else 3.11, else any.
include_guard(DIRECTORY)
if(DEFINED Python3_EXECUTABLE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)
else()
  find_package(Python3 3.11 EXACT COMPONENTS Interpreter Development.Module)
  if(NOT Python3_FOUND)
    find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)
  endif()
endif()
set(PYBIND11_FINDPYTHON OFF)
set(PYTHON_EXECUTABLE ${Python3_EXECUTABLE})
find_package(pybind11 REQUIRED CONFIG)

# rankprobe_python_module(TARGET OUTPUT_NAME SRCS .. DEPS ..): an extension in
# build/<preset>/python/rankprobe that shares neither symbols nor pybind11's
# registries of types and exceptions with any other extension of the process.
function(rankprobe_python_module target output)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  pybind11_add_module(${target} MODULE ${A_SRCS})
  target_link_libraries(${target} PRIVATE ${A_DEPS})
  target_compile_options(${target} PRIVATE ${RANKPROBE_WARNINGS})
  # Registries are shared among modules of the same compiler, by name.
  target_compile_definitions(${target} PRIVATE PYBIND11_COMPILER_TYPE="_rankprobe")
  file(CONFIGURE OUTPUT ${target}.map CONTENT "{ global: PyInit_${output}; local: *; };\n")
  target_link_options(${target} PRIVATE -Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${output} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/rankprobe)
endfunction()
