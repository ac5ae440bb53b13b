/*
 * PID 1 of the kernel benchmark: loads the modules in /files, in name order,
 * says when it began and when it was done, and ends the machine.
 *
 * Its output, on the console: "init SECONDS COUNT" and "ready SECONDS COUNT", where COUNT
 * is the time stamp counter, which counts instructions where QEMU is told so. With an
 * argument, which is a word of the kernel's command line, it then waits for ever.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void say(const char *what)
{
	unsigned long long count = __builtin_ia32_rdtsc();
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	dprintf(1, "%s %ld.%06ld %llu\n", what, (long)now.tv_sec, now.tv_nsec / 1000, count);
}

int main(int words, char **argument)
{
	struct dirent **files;
	int count;

	say("init");
	count = scandir("/files", &files, NULL, alphasort);
	if (count > 0 && chdir("/files"))
		return 1;
	for (int i = 0; i < count; i++) {
		if (files[i]->d_name[0] == '.')
			continue;
		int module = open(files[i]->d_name, O_RDONLY | O_CLOEXEC);

		if (module < 0 || syscall(SYS_finit_module, module, "", 0))
			dprintf(1, "cannot load %s: %m\n", files[i]->d_name);
		close(module);
	}
	say("ready");
	while (words > 1)
		pause();
	/* With -no-reboot, a reset ends the machine with or without ACPI. */
	reboot(RB_AUTOBOOT);
	return 1;
}
