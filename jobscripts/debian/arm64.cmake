# CMake toolchain: 64-bit Arm by Debian's cross compiler and the libraries of install-arm64-sysroot.sh, run under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

if(DEFINED ENV{XDG_CACHE_HOME})
  set(sysroot $ENV{XDG_CACHE_HOME}/tessera/sysroot-arm64)
else()
  set(sysroot $ENV{HOME}/.cache/tessera/sysroot-arm64)
endif()
set(libraries ${sysroot}/usr/lib/aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;${sysroot}")

# No --sysroot: the cross compiler keeps the headers of the C and C++ libraries in its own folder.
set(CMAKE_FIND_ROOT_PATH ${sysroot})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)  # Kokkos lies beside the sysroot
# OpenSSL keeps a header in the architecture's folder. -idirafter, since the C library's headers are there too, and the
# compiler's own must come first.
set(CMAKE_C_FLAGS_INIT "-idirafter ${sysroot}/usr/include/aarch64-linux-gnu")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")
set(CMAKE_SKIP_BUILD_RPATH TRUE)  # qemu finds libraries in the sysroot
# Debian 12's packages spread libraries over /lib and /usr/lib; HDF5 needs some of both.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${libraries}:${sysroot}/lib/aarch64-linux-gnu")

# Without the wrappers mpicc and h5pcc, which use this machine's compiler.
set(MPI_SKIP_COMPILER_WRAPPER TRUE)
set(MPI_C_HEADER_DIR ${sysroot}/usr/include/aarch64-linux-gnu/mpich)
set(MPI_C_LIB_NAMES mpich)
set(MPI_mpich_LIBRARY ${libraries}/libmpich.so)
set(HDF5_NO_FIND_PACKAGE_CONFIG_FILE TRUE)
set(HDF5_C_COMPILER_EXECUTABLE FALSE)
set(HDF5_ROOT ${libraries}/hdf5/mpich)
