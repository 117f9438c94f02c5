# SPDX-License-Identifier: Apache-2.0
# Man pages and completions, written by the programs themselves, in
# BUILD/share; target rankprobe_manual, install component manual.
include_guard()
include(GNUInstallDirs)

# rankprobe_manual(PROGRAM SECTION)
function(rankprobe_manual program section)
  set(_share ${CMAKE_BINARY_DIR}/share)
  set(_files
    man   man/man${section}/${program}.${section}
    bash  bash-completion/completions/${program}
    zsh   zsh/site-functions/_${program}
    fish  fish/vendor_completions.d/${program}.fish)
  set(_outputs)
  while(_files)
    list(POP_FRONT _files _format _path)
    get_filename_component(_directory ${_path} DIRECTORY)
    add_custom_command(OUTPUT ${_share}/${_path}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${_share}/${_directory}
      COMMAND $<TARGET_FILE:${program}> --dump-help=${_format} > ${_share}/${_path}.tmp
      COMMAND ${CMAKE_COMMAND} -E rename ${_share}/${_path}.tmp ${_share}/${_path}
      DEPENDS ${program} VERBATIM)
    list(APPEND _outputs ${_share}/${_path})
    install(FILES ${_share}/${_path} DESTINATION ${CMAKE_INSTALL_DATADIR}/${_directory} COMPONENT manual)
  endwhile()
  add_custom_target(${program}_share ALL DEPENDS ${_outputs})
  if(NOT TARGET rankprobe_manual)
    add_custom_target(rankprobe_manual)
  endif()
  add_dependencies(rankprobe_manual ${program}_share)
endfunction()
