# SPDX-License-Identifier: Apache-2.0
# With RANKPROBE_STATIC_DIR, every library but the C library becomes part of each
# program and extension: Debian's archives, and from that directory those of them
# that are not position-independent (packaging/wheel/static_libraries.sh). With
# RANKPROBE_GLIBC_STUBS, links against the glibc whose symbols are there
# (packaging/wheel/glibc_stubs.sh). Included before anything is searched for;
# rankprobe_use_archives() after that.
set(RANKPROBE_STATIC_DIR "" CACHE PATH "Archives to prefer; empty links the shared libraries")
set(RANKPROBE_GLIBC_STUBS "" CACHE PATH "Symbols and crt files of an old glibc; empty links this machine's")

if(RANKPROBE_STATIC_DIR)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  list(PREPEND CMAKE_LIBRARY_PATH ${RANKPROBE_STATIC_DIR})
  # Rooms that search for the same package again get the targets changed below.
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
  set(CMAKE_SKIP_RPATH ON)
  add_link_options(-static-libstdc++ -Wl,--as-needed -Wl,--gc-sections -Wl,--exclude-libs,ALL)
endif()
if(RANKPROBE_GLIBC_STUBS)
  # libgcc_s is this machine's and may ask for a newer glibc than the stubs have.
  add_link_options(-B${RANKPROBE_GLIBC_STUBS} -L${RANKPROBE_GLIBC_STUBS} -Wl,--allow-shlib-undefined)
endif()

# The archive of a shared library's path, empty if there is none.
function(_rankprobe_archive_of path result)
  get_filename_component(name ${path} NAME)
  get_filename_component(directory ${path} DIRECTORY)
  string(REGEX REPLACE "\\.so[.0-9]*$" ".a" name ${name})
  foreach(candidate ${RANKPROBE_STATIC_DIR}/${name} ${directory}/${name})
    if(EXISTS ${candidate})
      set(${result} ${candidate} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

macro(rankprobe_use_archives)
  if(RANKPROBE_STATIC_DIR)
    if(RANKPROBE_BUILD_COLLECTOR)
      find_package(leveldb REQUIRED)
      find_package(yaml-cpp REQUIRED)
    endif()
    _rankprobe_swap_targets()
    # What archives need and shared libraries would bring along. The linker (lld)
    # takes from them what is missing, whatever the order.
    find_library(RANKPROBE_SYSTEM_GRPC grpc REQUIRED)
    get_filename_component(_archives ${RANKPROBE_SYSTEM_GRPC} DIRECTORY)
    file(GLOB _absl ${RANKPROBE_STATIC_DIR}/libabsl_*.a)
    list(FILTER _absl EXCLUDE REGEX "flags|test|failure_signal|log_internal|leak_check")
    link_libraries(${_absl} ${RANKPROBE_STATIC_DIR}/libre2.a)
    foreach(_name gpr upb address_sorting cares ssl crypto z snappy)
      link_libraries(${_archives}/lib${_name}.a)
    endforeach()
  endif()
endmacro()

function(_rankprobe_swap_targets)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(NOT type STREQUAL SHARED_LIBRARY)
      continue()
    endif()
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    foreach(configuration ${configurations})
      get_target_property(location ${target} IMPORTED_LOCATION_${configuration})
      if(location)
        _rankprobe_archive_of(${location} archive)
        if(archive)
          set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} ${archive})
        endif()
      endif()
    endforeach()
  endforeach()
endfunction()
