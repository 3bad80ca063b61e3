"""Processes of this machine, read from /proc, for tests that watch, stop and kill the ranks of runs. A process may end at any
moment: what is asked of one that has ended is empty."""
import contextlib
import os


def _read(pid, name):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
    return b""


def _link(pid, name):
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/{name}")
    return ""


def _fields(pid):
    """Of /proc/PID/stat, from the state on: proc(5) counts the state as the third."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def environment(pid):
    """Variables that the process began with; none yet while the kernel still sets its memory up, after `exe` names the program."""
    entries = _read(pid, "environ").decode(errors="surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def rank_of(pid):
    """Its rank under Hydra or Open MPI; 0 of a process that no launcher started."""
    variables = environment(pid)
    return int(variables.get("PMI_RANK", variables.get("OMPI_COMM_WORLD_RANK", 0)))


def state_of(pid):
    """R, S, D, T (stopped), Z (ended, not yet waited for) ..."""
    return "".join(_fields(pid)[:1])


def computed(pid):
    """Seconds of processor time."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def signalled(pid, signal):
    """Whether a signal was sent that the process has not yet received."""
    lines = _read(pid, "status").decode().splitlines()
    return any(int(line.split()[1], 16) >> (signal - 1) & 1 for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))


def space_of(pid):
    """Its namespace of processes."""
    return _link(pid, "ns/pid")


def find(program="", folder="", space="", **variables):
    """Pids of the processes that run the file `program`, in `folder`, in that namespace, with those variables; where one of these
    is not given, of any."""
    program = program and os.path.realpath(program)
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if program and _link(pid, "exe") != program or folder and _link(pid, "cwd") != folder or space and space_of(pid) != space:
            continue
        if not variables or variables.items() <= environment(pid).items():
            found.append(pid)
    return found


def ranks(program, folder):
    """Pids of the ranks that run in a folder, by rank, of those whose variables can be read."""
    return {rank_of(pid): pid for pid in find(program, folder) if environment(pid)}
