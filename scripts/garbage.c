/* An init, and nothing else, of a guest that sends garbage: on the agent's port, the serial console, the
 * network, every disk and every I/O port. scripts/soak_faults.py builds it, static, into an initrd of its
 * own. Ends in seconds; the machine ends with it.
 *
 * Registers and rings of virtio devices are not for programs of Linux: crates/vmm drives those
 * (virtio/hostile.rs), and the fuzz target `virtio`.
 */
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned char bytes[65536];

static unsigned any(unsigned below) {
    unsigned number;
    getrandom(&number, sizeof number, 0);
    return number % below;
}

static void pour(int fd, unsigned most) {
    for (time_t end = time(0) + 2; time(0) < end;) {
        getrandom(bytes, sizeof bytes, 0);
        if (write(fd, bytes, 1 + any(most)) < 0) return;
    }
}

static void into(const char *path, const void *first, size_t length) {
    int fd = open(path, O_RDWR | O_NOCTTY);
    if (fd < 0) return;
    if (length && write(fd, first, length) < 0) return;
    lseek(fd, (off_t)any(16 << 10) << 9, SEEK_SET);
    pour(fd, 32768);
    close(fd);
}

static void frames(void) {
    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    struct ifreq request = {.ifr_name = "eth0"};
    if (fd < 0 || ioctl(fd, SIOCGIFINDEX, &request) < 0) return;
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = request.ifr_ifindex};
    ioctl(fd, SIOCGIFFLAGS, &request);
    request.ifr_flags |= IFF_UP;
    ioctl(fd, SIOCSIFFLAGS, &request);
    for (time_t end = time(0) + 2; time(0) < end;) {
        unsigned length = 14 + any(1500);
        getrandom(bytes, length, 0);
        /* Half of them look like IPv4 or ARP. */
        if (any(2)) memcpy(bytes + 12, any(2) ? "\x08\x00\x45" : "\x08\x06\x00", 3);
        sendto(fd, bytes, length, 0, (struct sockaddr *)&to, sizeof to);
    }
}

int main(void) {
    mkdir("/dev", 0755);
    mkdir("/sys", 0755);
    mount("dev", "/dev", "devtmpfs", 0, 0);
    mount("sys", "/sys", "sysfs", 0, 0);
    int greets = any(2);
    DIR *devices = opendir("/dev");
    for (struct dirent *entry; devices && (entry = readdir(devices));) {
        const char *name = entry->d_name;
        char path[300];
        snprintf(path, sizeof path, "/dev/%s", name);
        int is_port = !strncmp(name, "vport", 5);
        int is_disk = !strncmp(name, "vd", 2) || !strncmp(name, "pmem", 4);
        if (!is_port && !is_disk && strcmp(name, "ttyS0") && strcmp(name, "hwrng")) continue;
        if (fork() == 0) {
            into(path, "MICABOX\n\x09\0\0\0", is_port && greets ? 12 : 0);
            _exit(0);
        }
    }
    if (fork() == 0) {
        frames();
        _exit(0);
    }
    while (wait(0) > 0) {}
    if (any(2) && iopl(3) == 0)
        for (int count = 0; count < 20000; count++) outb(any(256), any(65536));
    reboot(RB_AUTOBOOT);
    return 0;
}
