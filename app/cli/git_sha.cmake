# usage: cmake -DSOURCE=<tree> -DOUT=<header> -P git_sha.cmake
# Writes a header with the commit of the tree; if files differ from it, with "-dirty-" and a mark of the differences, so that
# two such builds can be told apart. Only if that has changed.
cmake_minimum_required(VERSION 3.25)
set(sha "")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE sha OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(sha MATCHES "-dirty$")
  execute_process(COMMAND ${git} --no-optional-locks -C ${SOURCE} diff --no-ext-diff --binary HEAD OUTPUT_VARIABLE differences ERROR_QUIET)
  string(SHA1 mark "${differences}")
  string(SUBSTRING ${mark} 0 8 mark)
  string(APPEND sha "-${mark}")
endif()
if(NOT sha)
  set(sha "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#pragma once\n#define TESSERA_GIT_SHA \"@sha@\"\n" @ONLY)
