# Wrapper, launcher and HDF5 of one MPI library, where several stand side by side.

set(tessera_anew "a build folder keeps what it was first configured with: cmake --fresh with the same arguments begins anew (or remove the folder)")

# Names MPICH's own wrapper if it stands beside the plain one, and the launcher and HDF5's wrapper of the same library. Debian
# has mpicc.mpich and mpicc.openmpi, and gives the plain names to either, by its alternatives. Where a module or Spack comes first
# in PATH there are plain names alone. What the user names stays. Refuses a library without its headers.
function(tessera_name_mpi)
  if(CMAKE_CROSSCOMPILING)
    return()
  endif()
  # A plain name of an earlier configuration becomes its own before it is another library's.
  foreach(variable MPI_C_COMPILER MPIEXEC_EXECUTABLE HDF5_C_COMPILER_EXECUTABLE)
    set(own "${${variable}}.mpich")
    if(EXISTS "${own}")
      file(REAL_PATH "${${variable}}" plain)
      file(REAL_PATH "${own}" named)
      if(plain STREQUAL named)
        set(${variable} ${own} CACHE FILEPATH "Of the MPI library" FORCE)
      endif()
    endif()
  endforeach()
  set(found ${MPI_C_COMPILER})
  if(NOT found)
    find_program(wrapper NAMES mpicc mpicc.mpich HINTS ${MPI_HOME} ${MPI_ROOT} ENV MPI_HOME ENV MPI_ROOT PATH_SUFFIXES bin NO_CACHE)
    set(found ${wrapper})
    if(EXISTS "${wrapper}.mpich")
      set(found ${wrapper}.mpich)
    endif()
    if(found MATCHES "mpich$")
      set(MPI_C_COMPILER ${found} CACHE FILEPATH "Wrapper of the MPI library" FORCE)
    endif()
  endif()
  if(found MATCHES "^(.*/)mpicc(\\.[a-z]+)$")
    set(launcher ${CMAKE_MATCH_1}mpiexec${CMAKE_MATCH_2})
    set(hdf5 ${CMAKE_MATCH_1}h5pcc${CMAKE_MATCH_2})
    if(NOT MPIEXEC_EXECUTABLE AND EXISTS ${launcher})
      set(MPIEXEC_EXECUTABLE ${launcher} CACHE FILEPATH "Launcher of the MPI library" FORCE)
    endif()
    if(NOT HDF5_C_COMPILER_EXECUTABLE AND NOT HDF5_ROOT AND NOT DEFINED ENV{HDF5_ROOT} AND EXISTS ${hdf5})
      set(HDF5_C_COMPILER_EXECUTABLE ${hdf5} CACHE FILEPATH "Wrapper of HDF5" FORCE)
    endif()
  endif()
  # What an earlier configuration of this folder found, else what the wrapper says: CMake itself would stop without a reason.
  set(folders ${MPI_C_COMPILER_INCLUDE_DIRS})
  if(found AND NOT folders)
    execute_process(COMMAND ${found} -show OUTPUT_VARIABLE said ERROR_QUIET)
    string(REGEX MATCHALL "-I[^ \n]+" folders "${said}")
    list(TRANSFORM folders REPLACE "^-I" "")
  endif()
  foreach(folder IN LISTS folders)
    if(NOT IS_DIRECTORY ${folder})
      tessera_refuse("${found}, an MPI library whose headers are not in ${folder}" "an MPI library with its headers"
        "apt-get install libmpich-dev; or name another wrapper, -DMPI_C_COMPILER=/usr/bin/mpicc.mpich; ${tessera_anew}")
    endif()
  endforeach()
endfunction()

# Refuses MPICH's launcher for Open MPI, and the other way round: each rank would be a run by itself.
function(tessera_check_launcher)
  if(CMAKE_CROSSCOMPILING OR NOT MPIEXEC_EXECUTABLE)
    return()
  endif()
  include(CheckCSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
  check_c_source_compiles("
    #include <mpi.h>
    #ifndef OPEN_MPI
    #error another library
    #endif
    int main(void) { return 0; }" TESSERA_MPI_IS_OPEN_MPI)
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE code)
  set(of "")
  if(said MATCHES "Open MPI|OpenRTE")
    set(of "Open MPI")
  elseif(said MATCHES "HYDRA|MPICH")
    set(of "MPICH")
  endif()
  if((TESSERA_MPI_IS_OPEN_MPI AND of STREQUAL "MPICH") OR (NOT TESSERA_MPI_IS_OPEN_MPI AND of STREQUAL "Open MPI"))
    tessera_refuse("${MPIEXEC_EXECUTABLE}, the launcher of ${of}, beside another MPI library (${MPI_C_LIBRARIES})"
      "wrapper and launcher of one MPI library"
      "-DMPI_C_COMPILER=... and -DMPIEXEC_EXECUTABLE=..., on Debian /usr/bin/mpicc.mpich and mpiexec.mpich; ${tessera_anew}")
  endif()
endfunction()

# Refuses an HDF5 that needs another MPI library than the program is linked with.
function(tessera_check_hdf5)
  if(NOT CMAKE_OBJDUMP)
    return()
  endif()
  set(linked "")
  foreach(library IN LISTS MPI_C_LIBRARIES)
    execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${library} OUTPUT_VARIABLE said ERROR_QUIET)
    if(said MATCHES "SONAME +([^ \n]+)")
      list(APPEND linked ${CMAKE_MATCH_1})
    endif()
  endforeach()
  foreach(library IN LISTS HDF5_C_LIBRARIES)
    execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${library} OUTPUT_VARIABLE said ERROR_QUIET)
    string(REGEX MATCHALL "NEEDED +lib[a-z]*mpi[a-z_]*[.]so[^ \n]*" needed "${said}")
    list(TRANSFORM needed REPLACE "NEEDED +" "")
    foreach(mpi IN LISTS needed)
      if(linked AND NOT mpi IN_LIST linked)
        tessera_refuse("HDF5 ${library}, which needs ${mpi}, and MPI ${MPI_C_LIBRARIES}, which is ${linked}"
          "a parallel HDF5, built with the same MPI as here"
          "apt-get install libhdf5-mpich-dev (cmake --preset openmpi: libhdf5-openmpi-dev); or -DHDF5_C_COMPILER_EXECUTABLE=... of that MPI; ${tessera_anew}")
      endif()
    endforeach()
  endforeach()
endfunction()
