"""Machines that cannot build: one message at configuration with what was found, what is needed and how to get it. What a build
calls itself.
"""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ON_X86 = platform.machine() == "x86_64"


class Configure:
    @pytest.fixture(autouse=True)
    def of_this_build(self, configured):
        self.kokkos, self.compiler = configured["Kokkos_DIR"], configured["CMAKE_CXX_COMPILER"]

    def setup_method(self):
        self.folder = pathlib.Path(self.folder)

    def file(self, name: str, text: str) -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def configure(self, *settings: str, kokkos: str | None = None, first: str = "") -> subprocess.CompletedProcess:
        """first: a folder that stands first in PATH."""
        command = ["cmake", "-S", SOURCE, "-B", str(self.folder / "build"), "-G", "Ninja", f"-DKokkos_DIR={self.kokkos if kokkos is None else kokkos}",
                   "-DTESSERA_CPU=", "-DTESSERA_TESTS=OFF", *settings]
        # The environment without the variables that name a Kokkos for presets.
        plain = {name: value for name, value in os.environ.items() if name not in ("TESSERA_KOKKOS", "Kokkos_ROOT")}
        return subprocess.run(command, capture_output=True, text=True, env=plain | {"PATH": f"{first}:{plain['PATH']}".strip(":")})

    def refused(self, found: str, needed: str, *settings: str, kokkos: str | None = None, first: str = "") -> None:
        done = self.configure(*settings, kokkos=kokkos, first=first)
        said = " ".join(done.stderr.split())
        assert done.returncode != 0, "was configured"
        assert said.count("CMake Error") == 1, done.stderr
        assert re.search(f"Tessera cannot be built here. found: {found}.* needed: {needed}.* remedy: ", said)

    def test_a_compiler_without_cxx20(self):
        old = self.file("old-compiler", f'#!/bin/sh\nfor a; do case $a in -std=*20 | -std=*2a) echo "unknown option $a" >&2; exit 1 ;; esac; done\nexec {self.compiler} "$@"\n')
        old.chmod(0o755)
        self.refused(r"\S+ [\d.]+ \(\S+old-compiler\), which does not take C\+\+20", "GCC 12 or Clang 16", f"-DCMAKE_CXX_COMPILER={old}")

    @pytest.mark.skipif(not ON_X86, reason="levels are x86's")
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

    def own_mpi(self, name: str, text: str) -> pathlib.Path:
        path = self.file(name, text)
        path.chmod(0o755)
        return path

    def another_mpi(self, suffix: str = "") -> str:
        """A folder with Open MPI's wrapper and launcher as they stand without its headers; returns it."""
        self.own_mpi(f"bin/mpicc{suffix}", "#!/bin/sh\necho gcc -I/no/openmpi/include -L/no/openmpi/lib -lmpi\n")
        self.own_mpi(f"bin/mpiexec{suffix}", "#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
        return str(self.folder / "bin")

    def cached(self, name: str) -> str:
        return re.search(rf"^{name}:\w+=(.*)$", (self.folder / "build" / "CMakeCache.txt").read_text(), re.M)[1]

    @pytest.mark.skipif(not os.path.exists("/usr/bin/mpicc.mpich"), reason="MPICH has no names of its own here")
    def test_mpich_is_taken_where_another_library_has_the_plain_names(self):
        first = self.another_mpi()
        for name in ("mpicc", "mpiexec", "h5pcc"):
            (self.folder / "bin" / (name + ".mpich")).symlink_to(f"/usr/bin/{name}.mpich")
        done = self.configure(first=first)
        assert done.returncode == 0, done.stderr
        for variable, name in (("MPI_C_COMPILER", "mpicc"), ("MPIEXEC_EXECUTABLE", "mpiexec"), ("HDF5_C_COMPILER_EXECUTABLE", "h5pcc")):
            assert self.cached(variable) == f"{first}/{name}.mpich"
        # The launcher's names on their own.
        self.refused(r"\S+/bin/mpiexec, the launcher of Open MPI, beside another MPI library", "wrapper and launcher of one MPI library",
                     f"-DMPIEXEC_EXECUTABLE={first}/mpiexec", first=first)

    def test_a_library_without_headers_and_a_folder_that_was_told_of_one(self):
        first = self.another_mpi()
        self.refused(r"\S+, an MPI library whose headers are not in /no/openmpi/include", "an MPI library with its headers",
                     f"-DMPI_C_COMPILER={first}/mpicc", first=first)
        shutil.rmtree(self.folder / "build")
        self.refused(".*headers are not in /no/openmpi/include", "an MPI library with its headers",
                     f"-DMPI_C_COMPILER={shutil.which('mpicc')}", "-DMPI_C_COMPILER_INCLUDE_DIRS=/no/openmpi/include")
        assert "cmake --fresh" in self.configure().stderr, "how to mend the folder"
        assert self.configure("--fresh").returncode == 0

    def test_an_hdf5_of_another_mpi(self):
        """By the library's own list of what it needs."""
        for name in ("libmpi.so.40", "libmpi_cray.so.12"):
            with self.subtests.test(name=name):
                folder = self.folder / name
                folder.mkdir()
                subprocess.run([self.compiler, "-shared", "-x", "c++", "/dev/null", f"-Wl,-soname,{name}", "-o", folder / "libmpi.so"], check=True)
                hdf5 = folder / "libhdf5.so"
                subprocess.run([self.compiler, "-shared", "-x", "c++", "/dev/null", "-x", "none", "-Wl,--no-as-needed", folder / "libmpi.so", "-o", hdf5], check=True)
                self.refused(rf"HDF5 \S+/libhdf5.so, which needs {re.escape(name)}, and MPI ", "a parallel HDF5, built with the same MPI",
                             f"-DHDF5_C_LIBRARY_hdf5={hdf5}")


class Commit:
    """The name by which a program's builds are told apart."""

    def test_trees_that_differ_have_different_names(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder)
            git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b"]
            name = lambda: subprocess.run(["cmake", f"-DSOURCE={folder}", f"-DOUT={folder}/out.hpp", "-P", f"{SOURCE}/app/cli/git_sha.cmake"],
                                          check=True) and re.search('"(.*)"', (source / "out.hpp").read_text())[1]
            subprocess.run(["git", "init", "-q", folder], check=True)
            names = {}
            for commit in ("one", "two"):
                for edit in (None, "a; b", "a;\nb", 'quoted "x" \\ ${y}', commit):  # the last: as it was
                    (source / "file").write_text(edit or commit)
                    if edit is None:
                        subprocess.run([*git, "add", "file"], check=True)
                        subprocess.run([*git, "commit", "-qm", commit], check=True)
                    names.setdefault(name(), []).append((commit, edit or commit))
            assert [len(set(trees)) for trees in names.values()] == [1] * 8, names
            assert sum("-dirty-" in one for one in names) == 6
