"""Is a guest: a network namespace with the machine's kernel in it, and a link.

    guest.py LINK MAC ADDRESS/PREFIX GATEWAY MTU sums|header COMMAND...

Joins the link (a descriptor) to an interface of the calling network namespace, sets that
up as mica-guest does, and runs the command. Its exit code is the command's. With `header`
the interface does with checksums what a virtio-net device does that has frames come behind
a header.
"""

import fcntl
import os
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF, TAP, NO_PACKET_INFO = 0x400454CA, 0x0002, 0x1000
VIRTIO_HEADER, TUNSETVNETHDRSZ, HEADER = 0x4000, 0x400454D8, 12
TUNSETOFFLOAD, CHECKSUM = 0x400454D0, 1
FRAME = 1 << 17
PATIENCE = 300  # seconds, as micabox-testing has it


def pump(source, target, skip):
    while frame := os.read(source, FRAME):
        try:
            os.write(target, memoryview(frame)[skip:])
        except OSError:  # an interface that is going down
            return


def settled():
    """Whether every closed connection's last bytes have been acknowledged: a namespace
    that ends takes with it what is on the way."""
    unacknowledged = {"04", "09", "0B"}  # FIN_WAIT1, LAST_ACK, CLOSING
    with open("/proc/self/net/tcp") as table:
        return not any(line.split()[3] in unacknowledged for line in table)


def main(link, mac, address, gateway, mtu, kind, *command):
    interface = os.open("/dev/net/tun", os.O_RDWR)
    header = HEADER if kind == "header" else 0
    flags = TAP | NO_PACKET_INFO | (VIRTIO_HEADER if header else 0)
    fcntl.ioctl(interface, TUNSETIFF, struct.pack("16sH22x", b"eth0", flags))
    if header:
        fcntl.ioctl(interface, TUNSETVNETHDRSZ, struct.pack("i", header))
        fcntl.ioctl(interface, TUNSETOFFLOAD, CHECKSUM)
    for words in [
        f"link set eth0 address {mac} mtu {mtu} up",
        "link set lo up",
        f"addr add {address} dev eth0",
        f"route add default via {gateway}",
    ]:
        subprocess.run(["ip", *words.split()], check=True)
    os.makedirs("/run/mica-net-test", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run/mica-net-test"], check=True)
    with open("/run/mica-net-test/resolv.conf", "w") as file:
        file.write(f"nameserver {gateway}\n")
    resolv_conf = os.path.realpath("/etc/resolv.conf")
    subprocess.run(["mount", "--bind", file.name, resolv_conf], check=True)

    link = int(link)
    os.set_blocking(link, True)
    received = threading.Thread(target=pump, args=(link, interface, 0), daemon=True)
    sent = threading.Thread(target=pump, args=(interface, link, header), daemon=True)
    received.start()
    sent.start()
    sys.stdout.flush()
    code = subprocess.run(command, check=False).returncode
    patience = time.monotonic() + PATIENCE
    while received.is_alive() and not settled():
        if time.monotonic() > patience:
            print("guest.py: what was sent last is not acknowledged", file=sys.stderr, flush=True)
            os._exit(1)
        # Sleep: the interval between looks.
        time.sleep(0.005)
    os._exit(code)


main(*sys.argv[1:])
