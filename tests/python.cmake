# Tests in Python, which pytest runs. Debian's pytest and h5py are only in the system's own interpreter, whichever python3 is first in PATH.
find_program(TESSERA_SYSTEM_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH REQUIRED)
set(TESSERA_ORACLE_PYTHON ${TESSERA_SYSTEM_PYTHON} CACHE FILEPATH
  "A Python with pytest, and with those of tokenizers, jinja2, safetensors, transformers and torch that are to be compared with")

# python_test(NAME FILE [TESTS node...] [EACH item... [AS node...]] [LABELS label...] [PROCESSORS 2] [TIMEOUT 1800] [PYTHON interpreter]
#             [OPTIONS word...] [PROPERTIES name value...])
# The tests of FILE as one ctest test; with TESTS, those that pytest would name FILE::node. With EACH, a ctest test for every item: NAME.item
# in lower case, of the nodes AS, in which @ stands for the item, by default the item itself. The first label is what NAME begins with.
# A ctest test whose every test was skipped is skipped.
function(python_test name file)
  set(arg_PROCESSORS 2)
  set(arg_TIMEOUT 1800)
  set(arg_PYTHON ${TESSERA_SYSTEM_PYTHON})
  set(arg_AS @)
  cmake_parse_arguments(given "" "PROCESSORS;TIMEOUT;PYTHON" "TESTS;EACH;AS;LABELS;OPTIONS;PROPERTIES" ${ARGN})
  if(given_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "python_test(${name}) does not know ${given_UNPARSED_ARGUMENTS}")
  endif()
  foreach(word PROCESSORS TIMEOUT PYTHON AS)
    if(DEFINED given_${word})
      set(arg_${word} "${given_${word}}")
    endif()
  endforeach()
  if(given_EACH)
    foreach(item IN LISTS given_EACH)
      string(TOLOWER ${item} lower)
      string(REPLACE @ ${item} nodes "${arg_AS}")
      python_test(${name}.${lower} ${file} TESTS ${nodes} LABELS ${given_LABELS} PROCESSORS ${arg_PROCESSORS} TIMEOUT ${arg_TIMEOUT}
        PYTHON ${arg_PYTHON} OPTIONS ${given_OPTIONS} PROPERTIES ${given_PROPERTIES})
    endforeach()
    return()
  endif()
  get_filename_component(path ${file} ABSOLUTE)
  string(REGEX REPLACE "[.].*" "" labels ${name})
  list(APPEND labels ${given_LABELS})
  list(TRANSFORM given_TESTS PREPEND "${path}::" OUTPUT_VARIABLE nodes)
  if(NOT nodes)
    set(nodes ${path})
  endif()
  add_test(NAME ${name} COMMAND ${arg_PYTHON} -m pytest ${nodes} --tessera $<TARGET_FILE:tessera> --launcher ${MPIEXEC_EXECUTABLE}
           --build ${CMAKE_BINARY_DIR} ${given_OPTIONS})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77 PROCESSORS ${arg_PROCESSORS} TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1" ${given_PROPERTIES})
endfunction()

# further(PATTERN...): labels the ctest tests of this folder whose names match one of the regular expressions `further`. They show for further
# formats, models, ranks or moments what the tests that are left show for some, or are benchmarks, clang-tidy, or tests of the oracle. test.sh
# runs them with --whole alone, CI always.
function(further)
  get_property(all DIRECTORY PROPERTY TESTS)
  foreach(pattern IN LISTS ARGN)
    set(matching ${all})
    list(FILTER matching INCLUDE REGEX "^(${pattern})$")
    if(NOT matching)
      message(FATAL_ERROR "further(${pattern}): no test of this folder is named so")
    endif()
    set_property(TEST ${matching} APPEND PROPERTY LABELS further)
  endforeach()
endfunction()
