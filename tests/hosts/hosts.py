"""Several hosts on one machine, for tests: namespaces of Linux, each with its own host name, boot id, network, processes
and shared memory, joined by a bridge. The launcher runs on a host of its own, "login"."""
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
import uuid

import processes

HERE = os.path.dirname(os.path.realpath(__file__))
NETWORK = "10.77.0"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def with_the_test():
    """In a new process: ends it together with its parent (PR_SET_PDEATHSIG), however that ends."""
    ctypes.CDLL(None).prctl(1, 9)


def command(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def is_hydra(launcher):
    return "HYDRA" in command(launcher, "--version").stdout


def is_open_mpi(launcher):
    return "Open" in command(launcher, "--version").stdout


def impossible(launcher, kind=None):
    """Why this machine cannot simulate hosts of a kind (Hosts if None), or this launcher not start ranks on them; empty if they can."""
    if sys.platform != "linux":
        return "hosts are simulated by Linux namespaces"
    if not is_hydra(launcher) and not is_open_mpi(launcher):
        return f"{launcher} is neither Hydra (MPICH) nor Open MPI's"
    kind = kind or Hosts
    tried = command("unshare", *kind.namespaces, "-f", "--mount-proc", "sh", "-c", "hostname other && mount -t tmpfs tmpfs /dev/shm" + kind.needs)
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else ""


def bits_a_second(rate):
    """Of a rate as tc writes it, "50mbit"."""
    for unit, factor in UNITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor
    raise ValueError(f"{rate}: a rate ends with {', '.join(UNITS)}")


def until(holds, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


class Hosts(contextlib.ExitStack):
    """Hosts h1, h2, ... in `folder`, which all see, but for folder/own, which each has for itself."""
    namespaces = ("-m", "-u", "-i", "-p", "-n")
    needs = " && ip link add name one type veth peer name two && ip link add name three type bridge && test -c /dev/net/tun"

    def __init__(self, folder, count):
        super().__init__()
        self.folder, self.names, self.pids = folder, [f"h{i + 1}" for i in range(count)], {}
        self.environment = {}  # by host: variables that ranks have there alone
        self.cables = {}  # by host: the program that passes its packets on, if its cable is not a perfect one

    def __enter__(self):
        super().__enter__()
        with contextlib.ExitStack() as undone:
            undone.push(self)
            self.begin()
            undone.pop_all()
        return self

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(text)

    def begin(self):
        os.makedirs(self.path("own"), exist_ok=True)
        self.write("hosts", "".join(f"{self.address(name)} {name}\n" for name in ("login", *self.names)) + "127.0.0.1 localhost\n")
        own = (name for name in ("-m", "-u", "-n") if name in self.namespaces)
        login = self.process("unshare", *own, "sh", "-c",
                             f"hostname login && mount --bind {self.path('hosts')} /etc/hosts && touch {self.path('login.up')} && exec sleep infinity")
        self.pids["login"] = login.pid
        until(lambda: os.path.exists(self.path("login.up")), "login")
        self.begin_network()
        for name in self.names:
            self.boot(name)

    def begin_network(self):
        self.inside("login", "ip", "link", "set", "lo", "up")
        self.inside("login", "ip", "link", "add", "br0", "type", "bridge")
        self.inside("login", "ip", "addr", "add", self.address("login") + "/24", "dev", "br0")
        self.inside("login", "ip", "link", "set", "br0", "up")

    def address(self, name):
        return f"{NETWORK}.{name[1:]}" if name in self.names else f"{NETWORK}.254"

    def process(self, *words, **options):
        made = subprocess.Popen(words, **{"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}, start_new_session=True,
                                preexec_fn=with_the_test)
        self.enter_context(made)
        self.callback(made.kill)
        return made

    def boot(self, name, perfect=True):
        """Starts a host, for the first time or after it was lost. Only a cable that is not perfect can be made bad()."""
        self.write(f"{name}.boot", str(uuid.uuid4()) + "\n")
        os.makedirs(self.path(f"{name}.own"), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.path(f"{name}.up"))
        outer = self.process("unshare", *self.namespaces, "-f", "--kill-child", "--mount-proc", os.path.join(HERE, "init.sh"), name, self.folder)
        until(lambda: os.path.exists(self.path(f"{name}.up")), name)
        with open(f"/proc/{outer.pid}/task/{outer.pid}/children", encoding="ascii") as file:
            pid = int(file.read())
        self.pids[name] = pid
        self.write(f"{name}.pid", str(pid))
        self.join_network(name, perfect)

    def join_network(self, name, perfect):
        with contextlib.suppress(RuntimeError):  # the system removes a lost host's link some time after it
            self.inside("login", "ip", "link", "delete", name)
        if cable := self.cables.pop(name, None):
            cable.kill()
            cable.wait()
        if perfect:
            self.inside("login", "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(self.pids[name]))
        else:
            self.lay_cable(name)
        self.inside("login", "ip", "link", "set", name, "master", "br0", "up")
        self.inside(name, "ip", "addr", "add", self.address(name) + "/24", "dev", "eth0")
        self.inside(name, "ip", "link", "set", "lo", "up")
        card = f"02:00:00:00:00:{self.names.index(name) + 1:02x}"  # the same after a reboot, since the others remember it
        self.inside(name, "ip", "link", "set", "eth0", "address", card, "up")

    def lay_cable(self, name):
        words = ("nsenter", "-t", str(self.pids["login"]), "-n", sys.executable, os.path.join(HERE, "cable.py"), name, str(self.pids[name]))
        self.cables[name] = self.process(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, text=True)
        if self.cables[name].stdout.readline() != "up\n":
            raise RuntimeError(f"no cable to {name}")

    def bad(self, name, delay=0.0, loss=0.0):
        """Delays each packet of the host's cable by so many seconds, and loses that share of them."""
        self.cables[name].stdin.write(f"{delay} {loss}\n")
        self.cables[name].stdin.flush()

    def inside(self, name, *words):
        """Runs a command in a host's network."""
        done = command("nsenter", "-t", str(self.pids[name]), "-n", "--", *words)
        if done.returncode:
            raise RuntimeError(f"{name}: {' '.join(words)}: {done.stderr}")
        return done.stdout

    def link(self, name, state):
        """Takes the host's network "down", for the host unseen, as a cable behind a switch; or "up"."""
        self.inside("login", "ip", "link", "set", name, state)

    def slow(self, name, rate):
        """Limits both directions of the host's link to a rate such as "50mbit"."""
        burst = max(1 << 16, int(bits_a_second(rate) / 8 / 1000))  # bytes; a millisecond's, since the kernel wakes no oftener
        for place, end in (("login", name), (name, "eth0")):
            self.inside(place, "tc", "qdisc", "replace", "dev", end, "root", "tbf", "rate", rate, "burst", str(burst), "latency", "50ms")

    def perfect(self, name):
        """Takes back slow()."""
        for place, end in (("login", name), (name, "eth0")):
            self.inside(place, "tc", "qdisc", "delete", "dev", end, "root")

    def answers_after(self, name, other):
        """Seconds until another host has refused a connection: one way there and back. The shortest of five."""
        tried = """import socket, sys, time
took = []
for _ in range(5):
    begun = time.monotonic()
    socket.socket().connect_ex((sys.argv[1], 9))
    took.append(time.monotonic() - begun)
print(min(took))"""
        return float(self.inside(name, sys.executable, "-c", tried, self.address(other)))

    def bytes_of(self, name, direction):
        """Bytes that the host has sent ("tx") or received ("rx") since its start."""
        return json.loads(self.inside(name, "ip", "-s", "-j", "link", "show", "dev", "eth0"))[0]["stats64"][direction]["bytes"]

    def kill(self, name):
        """Ends all processes of the host; its network goes with them, unless the link was down before."""
        os.kill(self.pids[name], 9)

    def space(self, name):
        """The host's namespace of processes, which outlives its first process by what cannot be killed."""
        return processes.space_of(self.pids[name])

    @staticmethod
    def members(space, program):
        """Processes of `program` in a space(), also on a host that was cut off."""
        return processes.find(program, space=space)

    def start(self, launcher, ranks, *words, out, environment=None):
        """Starts `words` with so many ranks on each host, as {"h1": 2, "h2": 2}; they write to files, since what is left of a lost host would
        hold a pipe open. Codes of ranks that end by themselves go to OUT.codes."""
        for name in self.names:
            self.write(f"{name}.variables", "".join(f"export {key}={value}\n" for key, value in self.environment.get(name, {}).items()))
        rank = (os.path.join(HERE, "rank.sh"), self.path(out + ".codes"))
        return self.on_login(*self.launch(launcher, ranks), *rank, *words, out=out, environment=environment)

    def launch(self, launcher, ranks):
        """The launcher's words before those of a rank."""
        places, entering = ",".join(f"{name}:{n}" for name, n in ranks.items()), os.path.join(HERE, "enter.sh")
        by = (["-launcher", "ssh", "-launcher-exec", entering, "-hosts", places] if is_hydra(launcher) else
              ["--mca", "plm_rsh_agent", entering, "--mca", "plm_rsh_no_tree_spawn", "1", "--host", places])
        return [launcher, *by, "-n", str(sum(ranks.values()))]

    def on_login(self, *words, out, environment=None):
        """Starts `words` on the host of the launcher; prints go to OUT.out and OUT.err."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "TESSERA_TEST_HOSTS": self.folder, **(environment or {})}
        with open(self.path(out + ".out"), "w") as file, open(self.path(out + ".err"), "w") as errors:
            started = subprocess.Popen(
                [*self.words("login"), *words], stdin=subprocess.DEVNULL, stdout=file, stderr=errors, env=variables, preexec_fn=with_the_test)
        self.callback(started.wait)
        self.callback(started.kill)
        return started

    def words(self, name):
        """What a command begins with that runs on the host, in the hosts' folder."""
        own = ("-i", "-p") if name in self.names else ()
        return "nsenter", "-t", str(self.pids[name]), "-m", "-u", *own, "-n", f"--wd={self.folder}", "--"

    def codes(self, out):
        """Exit code by rank, of those that have ended by themselves."""
        with contextlib.suppress(FileNotFoundError), open(self.path(out + ".codes"), encoding="ascii") as file:
            return {int(rank): int(code) for rank, code in map(str.split, file)}
        return {}
