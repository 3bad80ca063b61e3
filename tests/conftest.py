"""What all tests in Python share: options, the programs that they name, and what ctest is told of skipped tests."""
import collections
import contextlib
import os
import re
import sys
import tempfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
SKIPPED = 77  # SKIP_RETURN_CODE
OUTCOMES = collections.defaultdict(set)  # by test or file
pytest.register_assert_rewrite("held_runs", "on_hosts", "on_slurm", "runs", "trial")  # so that their assertions tell as much as those of tests
sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # of what tests start


def pytest_addoption(parser):
    group = parser.getgroup("Tessera")
    group.addoption("--tessera", type=os.path.abspath, default=os.path.join(ROOT, "build", "host", "tessera"), help="the program (build/host/tessera)")
    group.addoption("--build", type=os.path.realpath, help="the build's folder (where the program is)")
    group.addoption("--launcher", help="mpiexec (the one that the build was configured with)")
    group.addoption("--host-program", default="", type=lambda path: path and os.path.abspath(path),
                    help="a host build's program, for what crosses back ends (none)")
    group.addoption("--data", default="", type=lambda path: path and os.path.abspath(path), help="folder of the quickstart's corpus (the deck's own)")


def pytest_runtest_logreport(report):
    OUTCOMES[report.nodeid].add(report.outcome)


def pytest_collectreport(report):
    if report.skipped:
        OUTCOMES[report.nodeid].add(report.outcome)


def pytest_sessionfinish(session, exitstatus):
    """Ends with 77 where every test was skipped; one that skips a part of itself counts."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and OUTCOMES and all("skipped" in seen for seen in OUTCOMES.values()):
        session.exitstatus = SKIPPED


@pytest.fixture(scope="session")
def tessera(pytestconfig):
    """The program."""
    return pytestconfig.option.tessera


@pytest.fixture(scope="session")
def build(pytestconfig):
    """The build's folder."""
    return pytestconfig.option.build or os.path.dirname(pytestconfig.option.tessera)


@pytest.fixture(scope="session")
def configured(build):
    """Values of the build's CMakeCache.txt by name."""
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
        return dict(re.findall(r"^(\w+):\w+=(.*)$", file.read(), re.MULTILINE))


@pytest.fixture(scope="session")
def launcher(request):
    """The launcher of MPI programs."""
    return request.config.option.launcher or request.getfixturevalue("configured")["MPIEXEC_EXECUTABLE"]


@pytest.fixture
def folder():
    """An empty folder until the test ends."""
    with tempfile.TemporaryDirectory(prefix="tessera-test-") as name:
        yield os.path.realpath(name)


@pytest.fixture(scope="class", autouse=True)
def of_a_class(request, tessera, build):
    """Classes of tests have the programs, and `at_class_end`, which ends what they enter there behind their last test."""
    with contextlib.ExitStack() as at_class_end:
        if request.cls:
            request.cls.tessera, request.cls.build, request.cls.at_class_end = tessera, build, at_class_end
            request.cls.launcher = request.getfixturevalue("launcher") if request.config.option.launcher or os.path.exists(build) else ""
        yield


@pytest.fixture(autouse=True)
def of_a_test(request, folder, subtests):
    """Tests in classes have a name, a folder (unless their class has one for all), `subtests`, and `at_end`, as above."""
    with contextlib.ExitStack() as at_end:
        if test := request.instance:
            test.name, test.folder, test.subtests, test.at_end = request.node.name, getattr(test, "folder", folder), subtests, at_end
        yield
