"""Is a guest: a network namespace with the machine's kernel in it, and a link.

    guest.py LINK MAC ADDRESS/PREFIX GATEWAY MTU COMMAND...

Joins the link (a descriptor) to an interface of the calling network namespace, sets that
up as mica-guest does, and runs the command. Its exit code is the command's.
"""

import fcntl
import os
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF, TAP, NO_PACKET_INFO = 0x400454CA, 0x0002, 0x1000
FRAME = 1 << 17


def pump(source, target):
    while frame := os.read(source, FRAME):
        try:
            os.write(target, frame)
        except OSError:  # an interface that is going down
            return


def settled():
    """Whether every closed connection's last bytes have been acknowledged: a namespace
    that ends takes with it what is on the way."""
    unacknowledged = {"04", "09", "0B"}  # FIN_WAIT1, LAST_ACK, CLOSING
    with open("/proc/self/net/tcp") as table:
        return not any(line.split()[3] in unacknowledged for line in table)


def main(link, mac, address, gateway, mtu, *command):
    interface = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(interface, TUNSETIFF, struct.pack("16sH22x", b"eth0", TAP | NO_PACKET_INFO))
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
    for source, target in [(link, interface), (interface, link)]:
        threading.Thread(target=pump, args=(source, target), daemon=True).start()
    sys.stdout.flush()
    code = subprocess.run(command, check=False).returncode
    patience = time.monotonic() + 10
    while not settled() and time.monotonic() < patience:
        time.sleep(0.005)
    os._exit(code)


main(*sys.argv[1:])
