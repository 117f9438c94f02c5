# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the programs (component programs), and for C++ programs the
# agents' archives, headers, rankprobeConfig.cmake and pkg-config files
# (components development and, for LibTorch, libtorch). The wheel's component (python) is agent/python's.
include(CMakePackageConfigHelpers)

# _rankprobe_closure(RESULT TARGET..): these targets of the project and those
# that they link.
function(_rankprobe_closure result)
  set(found)
  set(open ${ARGN})
  while(open)
    list(POP_FRONT open target)
    if(target MATCHES "^rp_" AND NOT target STREQUAL rp_torch AND NOT target IN_LIST found)
      list(APPEND found ${target})
      get_target_property(linked ${target} INTERFACE_LINK_LIBRARIES)
      list(APPEND open ${linked})
    endif()
  endwhile()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# _rankprobe_export(SET COMPONENT TARGET..): installs archives under the project's name.
function(_rankprobe_export set component)
  foreach(target ${ARGN})
    string(REGEX REPLACE "^rp_(agent_)?" "" name ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} OUTPUT_NAME rankprobe_${name})
  endforeach()
  install(TARGETS ${ARGN} EXPORT ${set} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component})
  install(EXPORT ${set} NAMESPACE rankprobe:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/rankprobe COMPONENT ${component})
endfunction()

if(RANKPROBE_BUILD_COLLECTOR)
  install(TARGETS rankprobed rankprobe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endif()

_rankprobe_closure(_runtime rp_agent_runtime)
_rankprobe_export(rankprobeTargets development ${_runtime})
# What only groups others has no archive.
set(_archives ${_runtime})
list(REMOVE_ITEM _archives rp_agent_runtime rp_common)
list(TRANSFORM _archives REPLACE "^rp_(agent_)?" "-lrankprobe_")
list(JOIN _archives " " RANKPROBE_PC_LIBS)
set(RANKPROBE_PC_LIBS "-Wl,--start-group ${RANKPROBE_PC_LIBS} -Wl,--end-group")
if(RANKPROBE_BUILD_TORCH)
  _rankprobe_export(rankprobeLibtorchTargets libtorch rp_agent_libtorch)
endif()

# Headers keep their paths: #include "agent/libtorch/precision_debugger.h".
set(_headers ${CMAKE_INSTALL_INCLUDEDIR}/rankprobe)
install(DIRECTORY agent common DESTINATION ${_headers} COMPONENT development
  FILES_MATCHING PATTERN "*.h" PATTERN python EXCLUDE PATTERN testing EXCLUDE)
install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/gen/ DESTINATION ${_headers} COMPONENT development
  FILES_MATCHING PATTERN "*.h")
install(DIRECTORY proto/rankprobe DESTINATION ${CMAKE_INSTALL_DATADIR}/rankprobe/proto COMPONENT development
  FILES_MATCHING PATTERN "*.proto")

configure_package_config_file(cmake/rankprobeConfig.cmake.in ${PROJECT_BINARY_DIR}/rankprobeConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/rankprobe)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rankprobeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rankprobeConfig.cmake ${PROJECT_BINARY_DIR}/rankprobeConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/rankprobe COMPONENT development)
# Found from where the file is, so that an installation can be moved.
file(RELATIVE_PATH RANKPROBE_PC_UP "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/rankprobe.pc.in ${PROJECT_BINARY_DIR}/rankprobe.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rankprobe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
