# SPDX-License-Identifier: Apache-2.0
# The front end as one source file:
#   cmake -DESBUILD=FILE -DAPP=DIR -DOUT=DIR -P bundle.cmake
# OUT/app.js and OUT/app.css are APP/main.ts with all it imports, checked for
# nothing but syntax; OUT/page_files.cc holds them and index.html. Fetches
# nothing. APP/tsconfig.bundle.json says where packages lie that are imported by name;
# APP/tsconfig.json is for tests/lib/gates.sh and editors, which need the packages' types (web/package.json).
file(MAKE_DIRECTORY ${OUT})
file(REMOVE ${OUT}/app.js ${OUT}/app.css)
execute_process(
  COMMAND ${ESBUILD} main.ts --bundle --minify --format=esm --target=es2020 --charset=utf8 --legal-comments=none
          --jsx=automatic --jsx-import-source=preact --tsconfig=tsconfig.bundle.json --log-level=warning --outfile=${OUT}/app.js
  WORKING_DIRECTORY ${APP} RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "esbuild: ${APP}/main.ts")
endif()
# There is none if nothing imports a style.
file(TOUCH ${OUT}/app.css)
file(COPY ${APP}/index.html DESTINATION ${OUT})

set(text "// Made of web/app by web/bundle.cmake.\n#include \"web/page_files.h\"\n\nnamespace rankprobe {\nnamespace {\n\n")
set(rows)
set(number 0)
foreach(file "index.html|/|text/html; charset=utf-8" "app.js|/assets/app.js|text/javascript; charset=utf-8"
        "app.css|/assets/app.css|text/css; charset=utf-8")
  string(REPLACE "|" ";" file "${file}")
  # The type has a ; of its own.
  list(GET file 0 name)
  list(GET file 1 path)
  list(SUBLIST file 2 -1 type)
  file(READ ${OUT}/${name} hex HEX)
  string(LENGTH "${hex}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
  string(APPEND text "const unsigned char kFile${number}[] = {\n${bytes}0};\n\n")
  string(APPEND rows "      {\"${path}\", \"${type}\", {reinterpret_cast<const char*>(kFile${number}), ${length}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
string(APPEND text "}  // namespace\n\nconst std::vector<PageFile>& PageFiles() {\n  static const auto* const files = new std::vector<PageFile>{\n${rows}  };\n  return *files;\n}\n\n}  // namespace rankprobe\n")
file(WRITE ${OUT}/page_files.cc "${text}")
