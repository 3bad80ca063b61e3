#!/usr/bin/env python3
"""Machines that cannot build: one message at configuration with what was found, what is needed and how to get it.

    configure_test.py SOURCE KOKKOS_DIR COMPILER
"""
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import unittest

SOURCE, KOKKOS, COMPILER = sys.argv[1:4]
ON_X86 = platform.machine() == "x86_64"


class Configure(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def file(self, name: str, text: str) -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def refused(self, found: str, needed: str, *settings: str, kokkos: str = KOKKOS) -> None:
        command = ["cmake", "-S", SOURCE, "-B", str(self.folder / "build"), "-G", "Ninja", f"-DKokkos_DIR={kokkos}",
                   "-DTESSERA_CPU=", "-DTESSERA_TESTS=OFF", *settings]
        # The environment without the variables that name a Kokkos for presets.
        plain = {name: value for name, value in os.environ.items() if name not in ("TESSERA_KOKKOS", "Kokkos_ROOT")}
        done = subprocess.run(command, capture_output=True, text=True, env=plain)
        said = " ".join(done.stderr.split())
        self.assertNotEqual(done.returncode, 0, "was configured")
        self.assertEqual(said.count("CMake Error"), 1, done.stderr)
        self.assertRegex(said, f"Tessera cannot be built here. found: {found}.* needed: {needed}.* remedy: ")

    def test_a_compiler_without_cxx20(self):
        old = self.file("old-compiler", f'#!/bin/sh\nfor a; do case $a in -std=*20 | -std=*2a) echo "unknown option $a" >&2; exit 1 ;; esac; done\nexec {COMPILER} "$@"\n')
        old.chmod(0o755)
        self.refused(r"\S+ [\d.]+ \(\S+old-compiler\), which does not take C\+\+20", "GCC 12 or Clang 16", f"-DCMAKE_CXX_COMPILER={old}")

    @unittest.skipUnless(ON_X86, "levels are x86's")
    def test_a_cpu_older_than_v2(self):
        self.refused("TESSERA_CPU=core2, which has no SSE4.2", "x86-64-v2 or later", "-DTESSERA_CPU=core2")

    def test_an_old_kokkos(self):
        self.file("kokkos/KokkosConfig.cmake", "")
        self.file("kokkos/KokkosConfigVersion.cmake",
                  "set(PACKAGE_VERSION 3.4.01)\nif(NOT PACKAGE_FIND_VERSION VERSION_GREATER 3.4.01)\n  set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n")
        self.refused(r"Kokkos 3\.4\.01 \(\S+KokkosConfig.cmake\)", "Kokkos 4.7 or later", f"-DCMAKE_PREFIX_PATH={self.folder}", kokkos="")

    def test_a_serial_hdf5(self):
        self.file("hdf5/hdf5-config.cmake", """
add_library(hdf5-shared SHARED IMPORTED)
set_target_properties(hdf5-shared PROPERTIES IMPORTED_CONFIGURATIONS RELEASE IMPORTED_LOCATION_RELEASE /serial/libhdf5.so)
set(HDF5_VERSION 1.10.8)
set(HDF5_ENABLE_PARALLEL OFF)
set(HDF5_INCLUDE_DIR /serial/include)
""")
        self.refused(r"HDF5 1\.10\.8 without MPI", "a parallel HDF5", f"-DHDF5_DIR={self.folder / 'hdf5'}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
