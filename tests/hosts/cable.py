"""The cable of a simulated host, which delays and loses packets: two devices whose packets this program passes on. Of its own,
since few kernels of containers have netem; devices of this kind have whole, checked packets of one MTU each.

usage: cable.py HOST PID; reads lines "DELAY LOSS", in seconds and as a share of packets, and prints "up" when the cable is laid.
In the network of the switch its end is named HOST, in that of process PID eth0.
"""
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, TAP, WITHOUT_HEADER = 0x400454CA, 2, 0x1000
LONGEST = 65536  # bytes of a packet


def device(name):
    """A network device whose packets the returned file reads and writes."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), TAP | WITHOUT_HEADER))
    return file


def taken(end):
    """Packets that wait at an end."""
    while True:
        try:
            yield os.read(end, LONGEST)
        except BlockingIOError:
            return
        except OSError:  # the device is down
            return


def passed_on(end, packet):
    try:
        os.write(end, packet)
    except OSError:  # down, or full: as a switch, it drops
        pass


def main():
    host, pid = sys.argv[1:]
    switch, card = device(host), device("card")
    subprocess.run(["ip", "link", "set", "card", "netns", pid, "name", "eth0"], check=True)
    print("up", flush=True)
    other = {switch: card, card: switch}
    delay = loss = 0.0
    under_way = []  # (time of arrival, number, end, packet)
    number = 0
    while True:
        patience = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select([sys.stdin, switch, card], [], [], patience)
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            delay, loss = map(float, line.split())
        for end in ready:
            for packet in taken(end) if end in other else ():
                if random.random() >= loss:
                    number += 1
                    heapq.heappush(under_way, (time.monotonic() + delay, number, other[end], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            passed_on(*heapq.heappop(under_way)[2:])


if __name__ == "__main__":
    main()
