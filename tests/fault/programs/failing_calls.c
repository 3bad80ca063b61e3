// Preloaded, it makes system calls on some files fail: TESSERA_TEST_FAILS="CALL:PATH:ERRNO:TIMES", where CALL is open,
// read, lock, list or see (stat), PATH a part of the file's path, and TIMES how often a process fails (-1: always).
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char call[16], part[512];
static int cause, times;

__attribute__((constructor)) static void read_plan(void) {
  const char* const plan = getenv("TESSERA_TEST_FAILS");
  if (!plan || sscanf(plan, "%15[^:]:%511[^:]:%d:%d", call, part, &cause, &times) != 4) times = 0;
}

static int fails(const char* now, const char* path) {
  if (times == 0 || strcmp(now, call) != 0 || !path || !strstr(path, part)) return 0;
  if (times > 0) --times;
  errno = cause;
  return 1;
}

static int fails_at(const char* now, int file) {
  char link[64], path[4096];
  if (times == 0 || strcmp(now, call) != 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return fails(now, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int mode_of(int flags, va_list more) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; }

// A folder is opened to be listed.
static const char* opening(int flags) { return flags & O_DIRECTORY ? "list" : "open"; }

#define OPEN(name)                                            \
  int name(const char* path, int flags, ...) {                \
    va_list more;                                             \
    va_start(more, flags);                                    \
    const int mode = mode_of(flags, more);                    \
    va_end(more);                                             \
    return fails(opening(flags), path) ? -1 : NEXT(name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                          \
  int name(int at, const char* path, int flags, ...) {        \
    va_list more;                                             \
    va_start(more, flags);                                    \
    const int mode = mode_of(flags, more);                    \
    va_end(more);                                             \
    return fails(opening(flags), path) ? -1 : NEXT(name)(at, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

DIR* opendir(const char* path) { return fails("list", path) ? NULL : NEXT(opendir)(path); }
ssize_t read(int file, void* to, size_t n) { return fails_at("read", file) ? -1 : NEXT(read)(file, to, n); }
ssize_t pread(int file, void* to, size_t n, off_t at) { return fails_at("read", file) ? -1 : NEXT(pread)(file, to, n, at); }
ssize_t pread64(int file, void* to, size_t n, off64_t at) { return fails_at("read", file) ? -1 : NEXT(pread64)(file, to, n, at); }
int flock(int file, int how) { return fails_at("lock", file) ? -1 : NEXT(flock)(file, how); }
int stat(const char* path, struct stat* to) { return fails("see", path) ? -1 : NEXT(stat)(path, to); }
int stat64(const char* path, struct stat64* to) { return fails("see", path) ? -1 : NEXT(stat64)(path, to); }
