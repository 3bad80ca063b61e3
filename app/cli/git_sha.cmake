# usage: cmake -DSOURCE=<tree> -DOUT=<header> -P git_sha.cmake
# Writes a header with the commit of the tree, with "-dirty" appended if files differ from it; only if that has changed.
cmake_minimum_required(VERSION 3.25)
set(sha "")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE sha OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT sha)
  set(sha "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#pragma once\n#define TESSERA_GIT_SHA \"@sha@\"\n" @ONLY)
