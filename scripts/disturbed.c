// What scripts/disturbed preloads into every process of a test: the second processor's clocks are 21 ms ahead, as on a
// virtual machine whose host has moved it, a process takes 50 ms to exit, and one in 32 of the calls with which
// processes and threads meet each other takes up to 30 ms longer, before it or after it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { AHEAD = 21 * 1000 * 1000, EXIT = 50 * 1000 * 1000, DELAY = 30 * 1000 * 1000, SECOND = 1000 * 1000 * 1000 };

// A child of a process with threads may not look anything up.
#define NEXT(name) static __typeof__(name) *next_##name
NEXT(clock_gettime);
NEXT(accept4);
NEXT(connect);
NEXT(recv);
NEXT(recvmsg);
NEXT(send);
NEXT(sendmsg);
NEXT(poll);
NEXT(epoll_wait);
NEXT(waitpid);
NEXT(pthread_create);

#define FIND(name) (next_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name))
__attribute__((constructor)) static void find(void)
{
	FIND(clock_gettime);
	FIND(accept4);
	FIND(connect);
	FIND(recv);
	FIND(recvmsg);
	FIND(send);
	FIND(sendmsg);
	FIND(poll);
	FIND(epoll_wait);
	FIND(waitpid);
	FIND(pthread_create);
}

// Waits by a system call that every filter of a jail allows.
static void linger(long nanoseconds)
{
	int word = 0, kept = errno;
	struct timespec time = { .tv_nsec = nanoseconds };
	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
	errno = kept;
}

static void perhaps(void)
{
	static __thread uint64_t state;
	if (!state) {
		struct timespec time = { 0 };
		next_clock_gettime(CLOCK_MONOTONIC, &time);
		state = ((uint64_t)time.tv_nsec << 20 ^ (uintptr_t)&state) | 1;
	}
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	if (!(state >> 32 & 31))
		linger((long)((state >> 36) % DELAY));
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	// Another library's constructor may be the first.
	if (!next_clock_gettime)
		FIND(clock_gettime);
	int status = next_clock_gettime(clock, time);
	// Times of processes and threads (2, 3, and negative ones) are sums.
	if (status || clock < 0 || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
		return status;
	if (sched_getcpu() == 1 && (time->tv_nsec += AHEAD) >= SECOND) {
		time->tv_nsec -= SECOND;
		time->tv_sec++;
	}
	return status;
}

#define DELAYED(type, name, declared, passed) \
	type name declared \
	{ \
		if (!next_##name) \
			find(); \
		perhaps(); \
		type result = next_##name passed; \
		perhaps(); \
		return result; \
	}

DELAYED(int, accept4, (int socket, struct sockaddr *address, socklen_t *length, int flags), (socket, address, length, flags))
DELAYED(int, connect, (int socket, const struct sockaddr *address, socklen_t length), (socket, address, length))
DELAYED(ssize_t, recv, (int socket, void *bytes, size_t count, int flags), (socket, bytes, count, flags))
DELAYED(ssize_t, recvmsg, (int socket, struct msghdr *message, int flags), (socket, message, flags))
DELAYED(ssize_t, send, (int socket, const void *bytes, size_t count, int flags), (socket, bytes, count, flags))
DELAYED(ssize_t, sendmsg, (int socket, const struct msghdr *message, int flags), (socket, message, flags))
DELAYED(int, poll, (struct pollfd *files, nfds_t count, int timeout), (files, count, timeout))
DELAYED(int, epoll_wait, (int set, struct epoll_event *events, int count, int timeout), (set, events, count, timeout))
DELAYED(pid_t, waitpid, (pid_t process, int *status, int options), (process, status, options))

struct start {
	void *(*routine)(void *);
	void *argument;
};

static void *begin(void *given)
{
	struct start start = *(struct start *)given;
	free(given);
	perhaps();
	return start.routine(start.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *), void *argument)
{
	if (!next_pthread_create)
		find();
	struct start *start = malloc(sizeof *start);
	if (!start)
		return EAGAIN;
	*start = (struct start){ routine, argument };
	int failure = next_pthread_create(thread, attributes, begin, start);
	if (failure)
		free(start);
	return failure;
}

__attribute__((destructor)) static void at_exit(void)
{
	linger(EXIT);
}

void _exit(int status)
{
	linger(EXIT);
	for (;;)
		syscall(SYS_exit_group, status);
}
