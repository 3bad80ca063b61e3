"""A temporary Slurm on this machine, or on hosts that it simulates, with its own folder, for the duration of a `with` block."""
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time

import processes

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
PATH = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin"
# TmpFS and FirstJobId: PMIx and Open MPI name folders there and shared memory by job and step, and several Slurms may run here at once.
CONFIGURATION = """ClusterName=tessera
SlurmctldHost={host}({address})
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
FirstJobId={first}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
JobAcctGatherType=jobacct_gather/none
MpiDefault=pmi2
JobRequeue=1
ReturnToService=2
KillWait=300
MinJobAge=600
SlurmdTimeout={patience}
SlurmctldTimeout=300
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing():
    """Why no Slurm can be started here; empty if it can."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if absent:
        return f"no {', '.join(absent)} here (jobscripts/debian/install-deps.sh --slurm)"
    return "" if os.geteuid() == 0 else "only root can start a Slurm"


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def until(seconds, what, condition):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.05)
    return found


def end_all(configuration, seconds=60):
    """Kills every process of the Slurm with this configuration; returns those that still run."""
    deadline = time.monotonic() + seconds
    while True:
        left = processes.find(SLURM_CONF=configuration)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


class ThisMachine:
    """Where a Slurm runs: nodes that are this machine, under several names if they are several."""

    def __init__(self, nodes):
        self.host, self.address = socket.gethostname().split(".")[0], "127.0.0.1"  # of the controller
        self.nodes = [f"t{i + 1}" for i in range(nodes)] if nodes > 1 else [self.host]

    def places(self, ports):
        """Of each node: host name, address, port of its daemon."""
        return [(self.host, self.address, port) for port in ports]

    def words(self, node=""):
        """What a command begins with that runs on the node, or else where the controller is."""
        return ()


class Slurm:
    def __init__(self, folder, cpus, nodes=1, where=None):
        """`folder`: an empty folder, used by this Slurm until the block ends. `cpus`: of each node. `where`: as ThisMachine, which is the
        default, of so many nodes."""
        self.folder, self.cpus, self.daemons = folder, cpus, []
        self.slurmd = {}  # by node
        self.where = where or ThisMachine(nodes)
        self.nodes = self.where.nodes
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": self.path("slurm.conf")}
        self.alive = -1

    def path(self, name):
        return os.path.join(self.folder, name)

    def __enter__(self):
        self.guard()
        try:
            self.start()
        except BaseException as error:
            logs = self.logs()
            self.stop()
            raise RuntimeError(f"Slurm did not start: {error}\n{logs}") from error
        return self

    def __exit__(self, *_):
        self.stop()

    def guard(self):
        """Starts a process that ends all daemons and jobs when this one has ended, even if it was killed."""
        gone, self.alive = os.pipe()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:  # an orphan, so that it survives if this program's children are killed
                os.setsid()
                os.close(self.alive)
                for stream in range(3):
                    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
                os.read(gone, 1)
                end_all(self.environment["SLURM_CONF"])
            os._exit(0)
        os.waitpid(child, 0)
        os.close(gone)

    def start(self):
        for name in ("state", *(f"{kind}.{node}" for kind in ("spool", "tmp") for node in self.nodes)):
            os.mkdir(self.path(name))
        with open(self.path("munge.key"), "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(128))
        controller, *ports = free_ports(1 + len(self.nodes))
        nodes = "\n".join(f"NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs={self.cpus} State=UNKNOWN"
                          for name, (host, address, port) in zip(self.nodes, self.where.places(ports)))
        with open(self.path("slurm.conf"), "w", encoding="ascii") as file:
            file.write(CONFIGURATION.format(host=self.where.host, address=self.where.address, controller=controller, nodes=nodes, folder=self.folder,
                                            first=random.randrange(1, 10**7), patience=10 if len(self.nodes) > 1 else 300))
        open(self.path("cgroup.conf"), "w").close()
        self.daemon("", "munged", "--foreground", "--force", *(f"--{key}={self.path('munge.' + end)}" for key, end in (
            ("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))))
        until(120, "munged", lambda: os.path.exists(self.path("munge.socket")))
        self.daemon("", "slurmctld", "-D", "-c")
        for name in self.nodes:
            self.start_node(name)
        until(300, "the nodes", lambda: self.ask("sinfo", "--noheader", "--format=%t", check=False) == "idle")

    def start_node(self, name):
        self.slurmd[name] = self.daemon(name, "slurmd", "-D", "-N", name)

    def brought_back(self, name):
        """Starts the daemon of a node that was lost; returns when jobs may have the node."""
        self.start_node(name)
        def idle():
            self.ask("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
            return self.ask("sinfo", "--noheader", "--format=%t", check=False) == "idle"
        until(120, f"{name} again", idle)

    def daemon(self, node, *command):
        log = open(self.path(command[0] + ".out"), "wb")
        self.daemons.append(subprocess.Popen((*self.where.words(node), *command), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        log.close()
        return self.daemons[-1]

    def logs(self):
        text = ""
        for name in sorted(entry for entry in os.listdir(self.folder) if entry.endswith((".log", ".out"))):
            with contextlib.suppress(OSError), open(self.path(name), errors="replace") as file:
                text += f"--- {name}\n{file.read()[-3000:]}"
        return text

    def stop(self):
        """Ends jobs, then daemons, then other processes; returns when nothing runs any more."""
        with contextlib.suppress(Exception):
            self.ask("scancel", "--user=root", timeout=10)
            until(15, "the queue", lambda: not self.ask("squeue", "--noheader", timeout=10))
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=60)
        left = end_all(self.environment["SLURM_CONF"])
        for daemon in self.daemons:
            daemon.wait(timeout=60)
        os.close(self.alive)
        if left:
            raise RuntimeError(f"processes {left} do not end")

    def ask(self, *command, check=True, timeout=300, **options):
        done = subprocess.run((*self.where.words(), *command), env=self.environment, capture_output=True, text=True, timeout=timeout, **options)
        if check and done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stderr}{done.stdout}")
        return done.stdout.strip()

    def lacks_pmix(self):
        """Why srun --mpi=pmix starts nothing here; empty if it does."""
        tried = subprocess.run((*self.where.words(), "srun", "--mpi=pmix", "--ntasks=1", "true"), env=self.environment, capture_output=True, text=True,
                               timeout=300)
        if "Invalid MPI type" not in tried.stderr:
            return ""
        return f"no PMIx plugin of Slurm, or no libpmix.so for it (jobscripts/debian/install-deps.sh --slurm --openmpi): {tried.stderr.splitlines()[0]}"

    def submit(self, *arguments, environment=None, folder=None):
        """Submits a job; returns its number."""
        done = subprocess.run((*self.where.words(), "sbatch", "--parsable", *arguments), env={**self.environment, **(environment or {})}, cwd=folder,
                              capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"sbatch {arguments}: {done.stderr}")
        return done.stdout.strip()

    def about(self, job):
        """The fields of `scontrol show job`."""
        text = self.ask("scontrol", "--oneliner", "show", "job", job)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def ended(self, job, seconds=600):
        """Waits until the job has ended for good; returns its fields."""
        final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")
        return until(seconds, f"the end of job {job}", lambda: (state := self.about(job))["JobState"] in final and state)
