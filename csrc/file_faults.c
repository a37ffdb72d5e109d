#include "file_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "file.h"

enum { MAX_FAULTS = 64, MAX_MAPPINGS = 256, PATH_SIZE = 512 };

typedef struct mapping {
    void *address;
    size_t size;
    int64_t inode;
    char path[PATH_SIZE];
} mapping;

/* One lock for all of it: calls come from several threads, and what is written down must be in their order. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kc_file_fault faults[MAX_FAULTS]; /* the one that was made last is first */
static int64_t last_id;
static int64_t counts[KC_CALL_COUNT];
static mapping mappings[MAX_MAPPINGS]; /* writable ones, to write down what was stored through them */
static int recording = -1;
static uint32_t held; /* calls that wait, a bit for each kind */
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;

/* -- which file ------------------------------------------------------------------------------------------------ */

static const char *path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_SIZE - 1);
    path[n < 0 ? 0 : n] = 0;
    return path;
}

static int64_t inode_of(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? (int64_t)status.st_ino : -1;
}

static mapping *mapping_at(const void *address) {
    for (int i = 0; i < MAX_MAPPINGS; i++) {
        if (mappings[i].address == address) return &mappings[i];
    }
    return NULL;
}

/* -- which calls fail ------------------------------------------------------------------------------------------ */

static int is_chosen(const kc_file_fault *fault, const char *path) {
    size_t n = strlen(path), ending = strlen(fault->ending);
    if (strncmp(path, fault->under, strlen(fault->under)) != 0) return 0;
    return ending <= n && strcmp(path + n - ending, fault->ending) == 0;
}

static int applies(const kc_file_fault *fault, kc_file_call call, const char *path, const char *other) {
    if (fault->times == 0 || !(fault->calls >> call & 1)) return 0;
    if (fault->thread && fault->thread != (uint64_t)(uintptr_t)pthread_self()) return 0;
    return is_chosen(fault, path) || is_chosen(fault, other);
}

/* How many of `size` bytes the call may move; -1 when it has to fail, errno set.  What else it is to do is in *effect,
 * which only says KC_FAULT_FAIL where nothing is. */
static int64_t allowed_now(kc_file_call call, const char *path, const char *other, int64_t size, kc_file_fault *effect) {
    for (kc_file_fault *fault = faults; fault < faults + MAX_FAULTS; fault++) {
        if (!applies(fault, call, path, other)) continue;
        if (fault->skip > 0) {
            fault->skip--;
            continue;
        }
        if (fault->effect == KC_FAULT_FAIL && fault->after_bytes > 0) {
            int64_t part = size < fault->after_bytes ? size : fault->after_bytes;
            fault->after_bytes -= part;
            if (fault->after_bytes == 0 && fault->error == 0) fault->times = 0;
            return part;
        }
        if (fault->times > 0) fault->times--;
        fault->hits++;
        *effect = *fault;
        if (fault->effect != KC_FAULT_FAIL) return size;
        errno = fault->error;
        return -1;
    }
    return size;
}

/* The same, after a wait if such calls are held or slow; other calls go on meanwhile. */
static int64_t allowed_with(kc_file_call call, const char *path, const char *other, int64_t size,
                            kc_file_fault *effect) {
    effect->effect = KC_FAULT_FAIL;
    counts[call]++;
    int64_t n = allowed_now(call, path, other, size, effect);
    int error = errno;
    while (held >> call & 1) pthread_cond_wait(&released, &lock);
    if (effect->effect == KC_FAULT_WAIT) {
        struct timespec wait = {effect->wait_ms / 1000, effect->wait_ms % 1000 * 1000000};
        pthread_mutex_unlock(&lock);
        nanosleep(&wait, NULL);
        pthread_mutex_lock(&lock);
    }
    errno = error;
    return n;
}

static int64_t allowed(kc_file_call call, const char *path, const char *other, int64_t size) {
    kc_file_fault ignored;
    return allowed_with(call, path, other, size, &ignored);
}

/* -- what is written down -------------------------------------------------------------------------------------- */

static void record(kc_file_call call, int64_t inode, const char *path, const char *other, int64_t position,
                   const void *data, size_t size) {
    if (recording < 0) return;
    int saved = errno;
    kc_file_entry entry = {(int32_t)call, (int32_t)(strlen(path) + 1), inode, position, 0};
    off_t start = lseek(recording, 0, SEEK_END);
    off_t end = start + (off_t)sizeof entry;
    end += pwrite(recording, path, strlen(path) + 1, end);
    if (other[0]) end += pwrite(recording, other, strlen(other) + 1, end), entry.path_size += (int32_t)strlen(other) + 1;
    /* The kernel reads a mapping: where its file has become shorter, it stops instead of raising SIGBUS. */
    ssize_t n = size ? pwrite(recording, data, size, end) : 0;
    entry.size = n < 0 ? 0 : n;
    if (pwrite(recording, &entry, sizeof entry, start) < 0) recording = -1;
    errno = saved;
}

/* Stores through mappings are no calls: before each change on disk, what they have done. */
static void record_stores(void) {
    for (int i = 0; recording >= 0 && i < MAX_MAPPINGS; i++) {
        const mapping *m = &mappings[i];
        if (m->address) record(KC_STORES, m->inode, m->path, "", 0, m->address, m->size);
    }
}

/* -- the calls ------------------------------------------------------------------------------------------------- */

static int faulty_open(const char *path, int flags, mode_t mode) {
    int writes = (flags & O_ACCMODE) != O_RDONLY;
    pthread_mutex_lock(&lock);
    int fd = -1;
    if (allowed(writes ? KC_CALL_OPEN_WRITE : KC_CALL_OPEN, path, "", 0) >= 0) {
        struct stat before;
        int made = (flags & O_CREAT) && kc_file_ops_libc.stat(path, &before) != 0;
        if (made || (flags & O_TRUNC)) record_stores();
        fd = kc_file_ops_libc.open(path, flags, mode);
        if (fd >= 0 && made) record(KC_CREATED, inode_of(fd), path, "", 0, NULL, 0);
        if (fd >= 0 && !made && (flags & O_TRUNC)) record(KC_CALL_FTRUNCATE, inode_of(fd), path, "", 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

static int faulty_stat(const char *path, struct stat *status) {
    pthread_mutex_lock(&lock);
    int n = allowed(KC_CALL_STAT, path, "", 0) < 0 ? -1 : kc_file_ops_libc.stat(path, status);
    pthread_mutex_unlock(&lock);
    return n;
}

static ssize_t faulty_pread(int fd, void *buf, size_t size, off_t position) {
    char path[PATH_SIZE];
    pthread_mutex_lock(&lock);
    int64_t n = allowed(KC_CALL_PREAD, path_of(fd, path), "", (int64_t)size);
    pthread_mutex_unlock(&lock);
    return n < 0 ? -1 : kc_file_ops_libc.pread(fd, buf, (size_t)n, position);
}

static ssize_t faulty_pwrite(int fd, const void *buf, size_t size, off_t position) {
    char path[PATH_SIZE];
    pthread_mutex_lock(&lock);
    kc_file_fault effect;
    ssize_t n = allowed_with(KC_CALL_PWRITE, path_of(fd, path), "", (int64_t)size, &effect);
    if (n >= 0) {
        record_stores();
        n = kc_file_ops_libc.pwrite(fd, buf, (size_t)n, position);
        if (n > 0 && effect.effect == KC_FAULT_FLIP) {
            uint8_t flipped = ((const uint8_t *)buf)[n - 1] ^ 1;
            if (kc_file_ops_libc.pwrite(fd, &flipped, 1, position + n - 1) != 1) n = -1;
        }
        if (n > 0) record(KC_CALL_PWRITE, inode_of(fd), path, "", position, buf, (size_t)n);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int faulty_ftruncate(int fd, off_t size) {
    char path[PATH_SIZE];
    pthread_mutex_lock(&lock);
    int n = -1;
    if (allowed(KC_CALL_FTRUNCATE, path_of(fd, path), "", 0) >= 0) {
        record_stores();
        n = kc_file_ops_libc.ftruncate(fd, size);
        if (n == 0) record(KC_CALL_FTRUNCATE, inode_of(fd), path, "", size, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int faulty_fsync(int fd) {
    char path[PATH_SIZE];
    pthread_mutex_lock(&lock);
    int n = -1;
    kc_file_fault effect;
    if (allowed_with(KC_CALL_FSYNC, path_of(fd, path), "", 0, &effect) >= 0) {
        record_stores();
        n = recording >= 0 || effect.effect == KC_FAULT_LOSE ? 0 : kc_file_ops_libc.fsync(fd); /* what is durable is up to the reader of the record */
        if (n == 0) record(KC_CALL_FSYNC, inode_of(fd), path, "", 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static void *faulty_mmap(void *address, size_t size, int protection, int flags, int fd, off_t position) {
    char path[PATH_SIZE];
    void *map = MAP_FAILED;
    pthread_mutex_lock(&lock);
    if (allowed(KC_CALL_MMAP, path_of(fd, path), "", 0) >= 0) {
        map = kc_file_ops_libc.mmap(address, size, protection, flags, fd, position);
        mapping *free_slot = map == MAP_FAILED || !(protection & PROT_WRITE) ? NULL : mapping_at(NULL);
        if (free_slot) {
            *free_slot = (mapping){map, size, inode_of(fd), ""};
            memcpy(free_slot->path, path, PATH_SIZE);
        }
    }
    pthread_mutex_unlock(&lock);
    return map;
}

static int faulty_munmap(void *address, size_t size) {
    pthread_mutex_lock(&lock);
    record_stores();
    mapping *entry = mapping_at(address);
    if (entry) entry->address = NULL;
    pthread_mutex_unlock(&lock);
    return kc_file_ops_libc.munmap(address, size);
}

static int faulty_msync(void *address, size_t size, int flags) {
    pthread_mutex_lock(&lock);
    const mapping *entry = mapping_at(address);
    const char *path = entry ? entry->path : "";
    int n = -1;
    kc_file_fault effect;
    if (allowed_with(KC_CALL_MSYNC, path, "", 0, &effect) >= 0) {
        n = recording >= 0 || effect.effect == KC_FAULT_LOSE ? 0 : kc_file_ops_libc.msync(address, size, flags);
        if (n == 0) record(KC_CALL_MSYNC, entry ? entry->inode : -1, path, "", 0, address, size);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int faulty_rename(const char *from, const char *to) {
    pthread_mutex_lock(&lock);
    int n = -1;
    if (allowed(KC_CALL_RENAME, from, to, 0) >= 0) {
        record_stores();
        n = kc_file_ops_libc.rename(from, to);
        if (n == 0) record(KC_CALL_RENAME, -1, from, to, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int change_path(kc_file_call call, const char *path, int (*change)(const char *)) {
    pthread_mutex_lock(&lock);
    int n = -1;
    if (allowed(call, path, "", 0) >= 0) {
        record_stores();
        n = change(path);
        if (n == 0) record(call, -1, path, "", 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int make_directory(const char *path) { return kc_file_ops_libc.mkdir(path, 0777); }

static int faulty_unlink(const char *path) { return change_path(KC_CALL_UNLINK, path, kc_file_ops_libc.unlink); }

static int faulty_rmdir(const char *path) { return change_path(KC_CALL_RMDIR, path, kc_file_ops_libc.rmdir); }

static int faulty_mkdir(const char *path, mode_t mode) {
    (void)mode;
    return change_path(KC_CALL_MKDIR, path, make_directory);
}

static DIR *faulty_opendir(const char *path) {
    pthread_mutex_lock(&lock);
    DIR *directory = allowed(KC_CALL_OPENDIR, path, "", 0) < 0 ? NULL : kc_file_ops_libc.opendir(path);
    pthread_mutex_unlock(&lock);
    return directory;
}

static struct dirent *faulty_readdir(DIR *directory) {
    char path[PATH_SIZE];
    pthread_mutex_lock(&lock);
    struct dirent *entry = NULL;
    if (allowed(KC_CALL_READDIR, path_of(dirfd(directory), path), "", 0) >= 0) {
        errno = 0;
        entry = kc_file_ops_libc.readdir(directory);
    }
    pthread_mutex_unlock(&lock);
    return entry;
}

static const kc_file_ops faulty = {
    .open = faulty_open,
    .stat = faulty_stat,
    .pread = faulty_pread,
    .pwrite = faulty_pwrite,
    .ftruncate = faulty_ftruncate,
    .fsync = faulty_fsync,
    .mmap = faulty_mmap,
    .munmap = faulty_munmap,
    .msync = faulty_msync,
    .rename = faulty_rename,
    .unlink = faulty_unlink,
    .mkdir = faulty_mkdir,
    .rmdir = faulty_rmdir,
    .opendir = faulty_opendir,
    .readdir = faulty_readdir,
};

/* -- what a test asks for --------------------------------------------------------------------------------------- */

static kc_file_fault *fault_of(int64_t id) {
    for (kc_file_fault *fault = faults; fault < faults + MAX_FAULTS; fault++) {
        if (fault->id == id) return fault;
    }
    return NULL;
}

/* The slot that a new fault may take: one without a fault, or else that of the oldest one that has hit all of its calls. */
static kc_file_fault *free_slot(void) {
    kc_file_fault *slot = fault_of(0);
    for (kc_file_fault *f = faults + MAX_FAULTS - 1; !slot && f >= faults; f--) {
        if (f->times == 0) slot = f;
    }
    return slot;
}

int64_t kc_file_fail(const kc_file_fault *fault) {
    int64_t id = 0;
    pthread_mutex_lock(&lock);
    const kc_file_fault *slot = free_slot();
    if (slot) {
        memmove(faults + 1, faults, (size_t)(slot - faults) * sizeof *faults);
        faults[0] = *fault;
        id = faults[0].id = ++last_id;
    }
    kc_file_ops_now = &faulty;
    pthread_mutex_unlock(&lock);
    return id;
}

int64_t kc_file_end_fault(int64_t id) {
    pthread_mutex_lock(&lock);
    kc_file_fault *fault = fault_of(id);
    int64_t hits = fault ? fault->hits : 0;
    if (fault) memset(fault, 0, sizeof *fault);
    pthread_mutex_unlock(&lock);
    return hits;
}

int64_t kc_file_fault_hits(int64_t id) {
    pthread_mutex_lock(&lock);
    const kc_file_fault *fault = fault_of(id);
    int64_t hits = fault ? fault->hits : 0;
    pthread_mutex_unlock(&lock);
    return hits;
}

void kc_file_count_calls(void) {
    pthread_mutex_lock(&lock);
    memset(faults, 0, sizeof faults);
    memset(counts, 0, sizeof counts);
    kc_file_ops_now = &faulty;
    pthread_mutex_unlock(&lock);
}

void kc_file_hold(kc_file_call call) {
    pthread_mutex_lock(&lock);
    held |= 1u << call;
    kc_file_ops_now = &faulty;
    pthread_mutex_unlock(&lock);
}

void kc_file_clear_faults(void) {
    pthread_mutex_lock(&lock);
    held = 0;
    pthread_cond_broadcast(&released);
    memset(faults, 0, sizeof faults);
    memset(counts, 0, sizeof counts);
    memset(mappings, 0, sizeof mappings);
    recording = -1;
    kc_file_ops_now = &kc_file_ops_libc;
    pthread_mutex_unlock(&lock);
}

int64_t kc_file_calls(kc_file_call call) { return counts[call]; }

void kc_file_record(int fd) {
    pthread_mutex_lock(&lock);
    recording = fd;
    kc_file_ops_now = &faulty;
    pthread_mutex_unlock(&lock);
}
