/* Simulated storage medium: preloaded into a process, it records and fails the calls that change files below a folder.
 *
 * WAYPOST_MEDIUM_ROOT     folder to watch
 * WAYPOST_MEDIUM_TRACE    file that receives a record of every change (absent: no records)
 * WAYPOST_MEDIUM_CONTROL  mapped file of struct control: the calls that fail; can change while the process runs
 *
 * medium_before_change(f) registers f. The thread calls f before each call that changes or syncs a file.
 *
 * The index of the write-ahead log (-shm) is never durable and never recorded. medium.py is the other side. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPENED = 1, CREATED, WRITTEN, TRUNCATED, SYNCED, SYNC_FAILED, UNLINKED, RENAMED, MADE };
enum class { DATABASE = 1, LOG = 2, OTHER = 4 };

struct record { uint32_t kind, file; uint64_t offset, length; };

struct control {
    uint32_t classes;                                       /* classes of files that the failures below apply to */
    uint32_t write_errno, sync_errno, read_errno, open_errno, limited;
    int64_t room;                                           /* bytes by which the files may still grow, when limited */
    uint32_t writes, syncs, reads, failures;                /* counters: calls on those files, failed calls */
    int32_t syncs_before;                                   /* calls that succeed before sync_errno applies */
    int32_t syncs_failing;                                  /* number of calls that fail then; -1: all */
    int32_t death;                                          /* number of the sync before which the process ends */
    int32_t refusals;                                       /* refused calls after which the limit ends; 0: it stays */
    uint32_t stalled;                                       /* classes of files with syncs that do not return now */
    uint32_t asleep;                                        /* counter: syncs that wait for that now */
};

#define FILES 4096
static struct { uint32_t id, class, owed; dev_t device; ino_t inode; } files[FILES]; /* owed: error of the next sync */
static uint32_t last_id;
static char root[4096];
static size_t root_length;
static int trace = -1;
static struct control none, *control = &none;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void (*before_change)(void);

void medium_before_change(void (*called)(void)) { before_change = called; }
static void announce_change(void) { if (before_change != NULL) before_change(); }

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_read)(int, void *, size_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_unlink)(const char *);
static int (*real_rename)(const char *, const char *);
static int (*real_mkdir)(const char *, mode_t);

__attribute__((constructor)) static void start(void) {
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_close = dlsym(RTLD_NEXT, "close");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_pread = dlsym(RTLD_NEXT, "pread64");
    real_read = dlsym(RTLD_NEXT, "read");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_mkdir = dlsym(RTLD_NEXT, "mkdir");
    const char *folder = getenv("WAYPOST_MEDIUM_ROOT"), *path = getenv("WAYPOST_MEDIUM_TRACE");
    if (folder == NULL || realpath(folder, root) == NULL) return;
    root_length = strlen(root);
    if (path != NULL) trace = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    path = getenv("WAYPOST_MEDIUM_CONTROL");
    int descriptor = path == NULL ? -1 : real_open(path, O_RDWR | O_CLOEXEC);
    if (descriptor >= 0) {
        void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (mapped != MAP_FAILED) control = mapped;
        real_close(descriptor);
    }
}

static int ends_with(const char *path, const char *end) {
    size_t length = strlen(path), wanted = strlen(end);
    return length >= wanted && strcmp(path + length - wanted, end) == 0;
}

static int below_root(const char *path) {
    return root_length > 0 && strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || !path[root_length]);
}

static uint32_t class_of(const char *path) {
    return ends_with(path, ".sqlite") ? DATABASE : ends_with(path, "-wal") ? LOG : OTHER;
}

static void record(uint32_t kind, uint32_t file, uint64_t offset, const void *data, size_t length, size_t stored) {
    if (trace < 0) return;
    struct record head = {kind, file, offset, length};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, stored}};
    if (writev(trace, parts, 2) != (ssize_t)(sizeof head + stored)) abort();
}

static uint32_t known(int descriptor) {
    if (real_open == NULL) start(); /* the constructor of another library ran first */
    return descriptor >= 0 && descriptor < FILES ? files[descriptor].id : 0;
}

/* Return 1 and set errno when a call on this file must fail now. */
static int failing(int descriptor, uint32_t error, uint32_t *count) {
    uint32_t concerned = files[descriptor].class & control->classes;
    if (!concerned) return 0;
    __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    if (error == 0) return 0;
    __atomic_add_fetch(&control->failures, 1, __ATOMIC_SEQ_CST);
    errno = (int)error;
    return 1;
}

/* Report a failed sync to every other descriptor of the file, as Linux does since 4.13 (fsync(2)). */
static void owe_the_others(int descriptor, uint32_t error) {
    for (int other = 0; other < FILES; other++)
        if (other != descriptor && files[other].id && files[other].device == files[descriptor].device &&
            files[other].inode == files[descriptor].inode)
            files[other].owed = error;
}

/* Return the error of this sync. `late`: the error is of an older sync, and this one keeps the writes since then. */
static uint32_t sync_error(int descriptor, int *late) {
    uint32_t owed = files[descriptor].owed;
    files[descriptor].owed = 0;
    if (owed && control->sync_errno) { *late = 1; return owed; } /* a repaired medium has no pending error */
    if (control->sync_errno == 0 || !(files[descriptor].class & control->classes)) return 0;
    if (control->syncs_before > 0) { control->syncs_before--; return 0; }
    if (control->syncs_failing == 0) return 0;
    if (control->syncs_failing > 0) control->syncs_failing--;
    owe_the_others(descriptor, control->sync_errno);
    return control->sync_errno;
}

static int opened(int descriptor, int existed, int flags) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || descriptor >= FILES) return descriptor;
    path[length] = 0;
    files[descriptor].id = 0;
    if (!below_root(path) || ends_with(path, "-shm")) return descriptor;
    if (control->open_errno && (flags & O_ACCMODE) != O_RDONLY && (class_of(path) & control->classes)) {
        control->failures++;
        real_close(descriptor);
        errno = (int)control->open_errno;
        return -1;
    }
    struct stat found = {0};
    fstat(descriptor, &found);
    files[descriptor].id = ++last_id;
    files[descriptor].class = class_of(path);
    files[descriptor].owed = 0;
    files[descriptor].device = found.st_dev;
    files[descriptor].inode = found.st_ino;
    record(existed ? OPENED : CREATED, last_id, 0, path, (size_t)length, (size_t)length);
    if (flags & O_TRUNC) record(TRUNCATED, last_id, 0, NULL, 0, 0);
    return descriptor;
}

static int open_any(int folder, const char *path, int flags, mode_t mode) {
    known(-1);
    if (root_length == 0) return real_openat(folder, path, flags, mode);
    pthread_mutex_lock(&mutex);
    struct stat found;
    int existed = !(flags & O_CREAT) || fstatat(folder, path, &found, 0) == 0;
    int descriptor = real_openat(folder, path, flags, mode);
    if (descriptor >= 0) descriptor = opened(descriptor, existed, flags);
    pthread_mutex_unlock(&mutex);
    return descriptor;
}

#define MODE(flags) ({ mode_t mode_ = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); \
    mode_ = va_arg(rest, mode_t); va_end(rest); } mode_; })
int open(const char *path, int flags, ...) { return open_any(AT_FDCWD, path, flags, MODE(flags)); }
int open64(const char *path, int flags, ...) { return open_any(AT_FDCWD, path, flags, MODE(flags)); }
int openat(int folder, const char *path, int flags, ...) { return open_any(folder, path, flags, MODE(flags)); }
int openat64(int folder, const char *path, int flags, ...) { return open_any(folder, path, flags, MODE(flags)); }

int close(int descriptor) {
    if (!known(descriptor)) return real_close(descriptor);
    pthread_mutex_lock(&mutex);
    files[descriptor].id = 0;
    int result = real_close(descriptor);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Return how many of `length` bytes at `offset` fit, as on a full file system; -1 and errno when none fit. */
static ssize_t room(int descriptor, size_t length, off_t offset) {
    struct stat found;
    if (!control->limited || !(files[descriptor].class & control->classes) || fstat(descriptor, &found) != 0)
        return (ssize_t)length;
    int64_t growth = (int64_t)offset + (int64_t)length - (int64_t)found.st_size;
    if (growth <= 0) return (ssize_t)length;
    if (growth > control->room) {
        if ((int64_t)length <= growth - control->room) {
            control->failures++;
            if (control->refusals > 0 && --control->refusals == 0) control->limited = 0;
            errno = ENOSPC;
            return -1;
        }
        length -= (size_t)(growth - control->room);
        growth = control->room;
    }
    control->room -= growth;
    return (ssize_t)length;
}

static ssize_t put(int descriptor, const void *data, size_t length, off_t offset, int positioned) {
    announce_change();
    pthread_mutex_lock(&mutex);
    ssize_t result = -1;
    if (!failing(descriptor, control->write_errno, &control->writes)) {
        ssize_t fits = room(descriptor, length, offset);
        if (fits >= 0)
            result = positioned ? real_pwrite(descriptor, data, (size_t)fits, offset)
                                : real_write(descriptor, data, (size_t)fits);
        if (result > 0)
            record(WRITTEN, files[descriptor].id, (uint64_t)offset, data, (size_t)result, (size_t)result);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

ssize_t write(int descriptor, const void *data, size_t length) {
    if (!known(descriptor)) return real_write(descriptor, data, length);
    struct stat found;
    int append = (fcntl(descriptor, F_GETFL) & O_APPEND) && fstat(descriptor, &found) == 0;
    return put(descriptor, data, length, append ? found.st_size : lseek(descriptor, 0, SEEK_CUR), 0);
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset) {
    return known(descriptor) ? put(descriptor, data, length, offset, 1) : real_pwrite(descriptor, data, length, offset);
}
ssize_t pwrite64(int descriptor, const void *data, size_t length, off64_t offset) {
    return pwrite(descriptor, data, length, offset);
}

ssize_t pread(int descriptor, void *data, size_t length, off_t offset) {
    if (known(descriptor) && failing(descriptor, control->read_errno, &control->reads)) return -1;
    return real_pread(descriptor, data, length, offset);
}
ssize_t pread64(int descriptor, void *data, size_t length, off64_t offset) {
    return pread(descriptor, data, length, offset);
}
ssize_t read(int descriptor, void *data, size_t length) {
    if (known(descriptor) && failing(descriptor, control->read_errno, &control->reads)) return -1;
    return real_read(descriptor, data, length);
}

int ftruncate(int descriptor, off_t length) {
    if (!known(descriptor)) return real_ftruncate(descriptor, length);
    announce_change();
    pthread_mutex_lock(&mutex);
    int result = -1;
    if (!failing(descriptor, control->write_errno, &control->writes)) {
        result = real_ftruncate(descriptor, length);
        if (result == 0) record(TRUNCATED, files[descriptor].id, (uint64_t)length, NULL, 0, 0);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
int ftruncate64(int descriptor, off64_t length) { return ftruncate(descriptor, length); }

/* Block this thread while its class of files is stalled; other threads continue. */
static void sleep_while_stalled(int descriptor) {
    uint32_t class = files[descriptor].class;
    if (!(class & control->stalled)) return;
    __atomic_add_fetch(&control->asleep, 1, __ATOMIC_SEQ_CST);
    while (class & __atomic_load_n(&control->stalled, __ATOMIC_SEQ_CST)) usleep(1000);
    __atomic_sub_fetch(&control->asleep, 1, __ATOMIC_SEQ_CST);
}

static int sync_any(int descriptor, int (*real)(int)) {
    if (!known(descriptor)) return real(descriptor);
    announce_change();
    sleep_while_stalled(descriptor);
    pthread_mutex_lock(&mutex);
    if (control->death > 0 && --control->death == 0) _exit(137);
    int late = 0;
    uint32_t error = sync_error(descriptor, &late);
    int failed = failing(descriptor, error, &control->syncs);
    int result = failed ? -1 : real(descriptor);
    int kept = errno;
    if (!late) record(result == 0 ? SYNCED : SYNC_FAILED, files[descriptor].id, 0, NULL, 0, 0);
    pthread_mutex_unlock(&mutex);
    errno = kept;
    return result;
}
int fsync(int descriptor) { return sync_any(descriptor, real_fsync); }
int fdatasync(int descriptor) { return sync_any(descriptor, real_fdatasync); }

/* SQLite and our own code pass absolute paths to the calls below; other paths are not below the root. */
int unlink(const char *path) {
    known(-1);
    pthread_mutex_lock(&mutex);
    int result = real_unlink(path);
    if (result == 0 && below_root(path) && !ends_with(path, "-shm"))
        record(UNLINKED, 0, 0, path, strlen(path), strlen(path));
    pthread_mutex_unlock(&mutex);
    return result;
}

int rename(const char *from, const char *to) {
    char both[8192];
    known(-1);
    pthread_mutex_lock(&mutex);
    int result = real_rename(from, to);
    if (result == 0 && below_root(from) && below_root(to)) {
        int length = snprintf(both, sizeof both, "%s%c%s", from, 0, to);
        record(RENAMED, 0, 0, both, (size_t)length, (size_t)length);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    known(-1);
    pthread_mutex_lock(&mutex);
    int result = real_mkdir(path, mode);
    if (result == 0 && below_root(path)) record(MADE, 0, 0, path, strlen(path), strlen(path));
    pthread_mutex_unlock(&mutex);
    return result;
}
