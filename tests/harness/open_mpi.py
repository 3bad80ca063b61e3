"""The build with Open MPI, for tests that compare it with a build with another MPI library."""
import json
import os
import shutil

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
PROGRAM = os.path.join(ROOT, "build", "openmpi", "tessera")
LAUNCHER = "mpiexec.openmpi"


def missing():
    """Why there is none here; empty if there is one."""
    if not shutil.which(LAUNCHER):
        return f"no {LAUNCHER} here (jobscripts/debian/install-deps.sh --openmpi)"
    return "" if os.path.exists(PROGRAM) else f"no {PROGRAM} (jobscripts/debian/build.sh openmpi)"


def environment():
    """Variables of its test preset."""
    with open(os.path.join(ROOT, "CMakePresets.json"), encoding="utf-8") as file:
        (preset,) = (one for one in json.load(file)["testPresets"] if one["name"] == "openmpi")
    return preset["environment"]
