#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static int libc_open(const char *path, int flags, mode_t mode) { return open(path, flags, mode); }

const kc_file_ops kc_file_ops_libc = {
    .open = libc_open, /* open itself takes its mode as a variable argument */
    .stat = stat,
    .pread = pread,
    .pwrite = pwrite,
    .ftruncate = ftruncate,
    .fsync = fsync,
    .mmap = mmap,
    .munmap = munmap,
    .msync = msync,
    .rename = rename,
    .unlink = unlink,
    .mkdir = mkdir,
    .rmdir = rmdir,
    .opendir = opendir,
    .readdir = readdir,
};
const kc_file_ops *kc_file_ops_now = &kc_file_ops_libc;

/* Linux moves at most this many bytes per call; macOS refuses more than INT_MAX. */
#define MAX_IO ((int64_t)0x7ffff000)

static kc_status fail_io(kc_error *err, const char *call, int64_t position, int64_t size) {
    return kc_fail(err, KC_IO, call, position, size, errno);
}

/* Calls on a path have no position. */
static kc_status fail_path(kc_error *err, const char *call) { return fail_io(err, call, -1, 0); }

static int open_retrying(const char *path, int flags) {
    int fd;
    do {
        fd = kc_file_ops_now->open(path, flags | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

int kc_file_open(const char *path, int how, kc_error *err) {
    /* O_NONBLOCK is for a FIFO in the place of a file, whose open would wait for a writer for ever. */
    int flags = O_NONBLOCK | (how & KC_OPEN_WRITE ? O_RDWR : O_RDONLY) | (how & KC_OPEN_EMPTY ? O_TRUNC : 0);
    /* A link is followed to what is there, but makes nothing where it leads to: that may be a disk not mounted now. */
    int fd = open_retrying(path, how & KC_OPEN_CREATE ? flags | O_CREAT | O_NOFOLLOW : flags);
    int is_link = fd < 0 && how & KC_OPEN_CREATE && errno == ELOOP;
    if (is_link) fd = open_retrying(path, flags);
    if (fd < 0) return (int)fail_path(err, is_link && errno == ENOENT ? "open of a link that leads nowhere" : "open");
    struct stat status;
    if (fstat(fd, &status) != 0) {
        fail_path(err, "fstat");
    } else {
        if (S_ISREG(status.st_mode)) return fd;
        errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
        fail_path(err, "open of what is no regular file");
    }
    close(fd);
    return (int)err->status;
}

/* Not retried on EINTR: Linux has released the descriptor by then. */
void kc_file_close(int fd) { close(fd); }

int64_t kc_file_size(int fd, kc_error *err) {
    struct stat status;
    if (fstat(fd, &status) != 0) return fail_io(err, "fstat", 0, 0);
    return status.st_size;
}

int64_t kc_file_first_hole(int fd, int64_t size) {
#ifdef SEEK_HOLE
    off_t hole = size > 0 ? lseek(fd, 0, SEEK_HOLE) : -1;
    if (hole >= 0 && hole < size) return hole;
#else
    (void)fd;
#endif
    return size;
}

int64_t kc_file_read(int fd, uint8_t *buf, int64_t size, int64_t position, kc_error *err) {
    int64_t done = 0;
    while (done < size) {
        int64_t want = size - done < MAX_IO ? size - done : MAX_IO;
        ssize_t n = kc_file_ops_now->pread(fd, buf + done, (size_t)want, (off_t)(position + done));
        if (n == 0) break;
        if (n > 0) {
            done += n;
        } else if (errno != EINTR) {
            return fail_io(err, "pread", position + done, size - done);
        }
    }
    return done;
}

kc_status kc_file_write(int fd, const uint8_t *buf, int64_t size, int64_t position, kc_error *err) {
    int64_t done = 0;
    while (done < size) {
        int64_t want = size - done < MAX_IO ? size - done : MAX_IO;
        ssize_t n = kc_file_ops_now->pwrite(fd, buf + done, (size_t)want, (off_t)(position + done));
        if (n > 0) {
            done += n;
        } else if (n == 0) { /* Not a failure by the book, but trying again would never end. */
            errno = EIO;
            return fail_io(err, "pwrite", position + done, size - done);
        } else if (errno != EINTR) {
            return fail_io(err, "pwrite", position + done, size - done);
        }
    }
    return KC_OK;
}

kc_status kc_file_append(int fd, const uint8_t *buf, int64_t size, int64_t position, int *cut, kc_error *err) {
    kc_error ignored;
    kc_status status = kc_file_write(fd, buf, size, position, err);
    *cut = status == KC_OK || kc_file_truncate(fd, position, &ignored) == KC_OK;
    return status;
}

kc_status kc_file_truncate(int fd, int64_t size, kc_error *err) {
    int n;
    do {
        n = kc_file_ops_now->ftruncate(fd, (off_t)size);
    } while (n != 0 && errno == EINTR);
    return n == 0 ? KC_OK : fail_io(err, "ftruncate", size, 0);
}

/* Not retried on any error: after a failed fsync the kernel may have dropped the dirty pages, and a
 * second call that succeeds proves nothing. */
kc_status kc_file_sync(int fd, kc_error *err) {
    return kc_file_ops_now->fsync(fd) == 0 ? KC_OK : fail_io(err, "fsync", 0, 0);
}

kc_status kc_file_sync_path(const char *path, kc_error *err) {
    int fd = open_retrying(path, O_RDONLY | O_NONBLOCK);
    if (fd < 0) return fail_path(err, "open");
    kc_status status = kc_file_ops_now->fsync(fd) == 0 ? KC_OK : fail_path(err, "fsync");
    close(fd);
    return status;
}

kc_status kc_file_status(const char *path, struct stat *status, kc_error *err) {
    return kc_file_ops_now->stat(path, status) == 0 ? KC_OK : fail_path(err, "stat");
}

int64_t kc_file_modified_ms(const struct stat *status) {
#ifdef __APPLE__
    const struct timespec *at = &status->st_mtimespec;
#else
    const struct timespec *at = &status->st_mtim;
#endif
    return (int64_t)at->tv_sec * 1000 + at->tv_nsec / 1000000;
}

kc_status kc_file_rename(const char *from, const char *to, kc_error *err) {
    return kc_file_ops_now->rename(from, to) == 0 ? KC_OK : fail_path(err, "rename");
}

kc_status kc_file_unlink(const char *path, kc_error *err) {
    return kc_file_ops_now->unlink(path) == 0 ? KC_OK : fail_path(err, "unlink");
}

kc_status kc_file_make_directory(const char *path, kc_error *err) {
    return kc_file_ops_now->mkdir(path, 0777) == 0 ? KC_OK : fail_path(err, "mkdir");
}

kc_status kc_file_remove_directory(const char *path, kc_error *err) {
    return kc_file_ops_now->rmdir(path) == 0 ? KC_OK : fail_path(err, "rmdir");
}

DIR *kc_file_open_directory(const char *path, kc_error *err) {
    DIR *directory = kc_file_ops_now->opendir(path);
    if (!directory) fail_path(err, "opendir");
    return directory;
}

kc_status kc_file_next_name(DIR *directory, const char **name, kc_error *err) {
    for (;;) {
        errno = 0; /* the only way to tell a failure from the end */
        struct dirent *entry = kc_file_ops_now->readdir(directory);
        *name = entry ? entry->d_name : NULL;
        if (!entry) return errno == 0 ? KC_OK : fail_path(err, "readdir");
        if (strcmp(*name, ".") != 0 && strcmp(*name, "..") != 0) return KC_OK;
    }
}

void kc_file_close_directory(DIR *directory) { closedir(directory); }

uint8_t *kc_file_map(int fd, int64_t size, int writable, kc_error *err) {
    void *map = kc_file_ops_now->mmap(NULL, (size_t)size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) return map;
    fail_io(err, "mmap", 0, size);
    return NULL;
}

void kc_file_unmap(uint8_t *map, int64_t size) { kc_file_ops_now->munmap(map, (size_t)size); }

kc_status kc_file_sync_map(uint8_t *map, int64_t size, kc_error *err) {
    return kc_file_ops_now->msync(map, (size_t)size, MS_SYNC) == 0 ? KC_OK : fail_io(err, "msync", 0, size);
}

void kc_file_populate(const uint8_t *map, int64_t position, int64_t size) {
#ifdef MADV_POPULATE_READ
    int64_t first = position & ~(int64_t)0xffff; /* any page size in use divides 64 KiB */
    madvise((void *)(uintptr_t)(map + first), (size_t)(position + size - first), MADV_POPULATE_READ);
#else
    (void)map, (void)position, (void)size;
#endif
}

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS: the socket carries SO_NOSIGPIPE, and Python ignores SIGPIPE anyway */
#endif

/* The kernel, not this process, touches the mapping: a page that is gone because the file was cut
 * makes send fail with EFAULT instead of raising SIGBUS. */
int64_t kc_file_send(int socket, int fd, const uint8_t *map, int64_t position, int64_t size, kc_error *err) {
    uint8_t copy[16384];
    if (size > MAX_IO) size = MAX_IO;
    for (;;) {
        const uint8_t *from;
        if (map) {
            from = map + position;
        } else {
            int64_t want = size < (int64_t)sizeof copy ? size : (int64_t)sizeof copy;
            int64_t n = kc_file_read(fd, copy, want, position, err);
            if (n < 0) return n;
            if (n == 0 && size > 0) return kc_fail(err, KC_TRUNCATED, "file slice", position, size, 0);
            from = copy;
            size = n;
        }
        ssize_t n = send(socket, from, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) return n;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
        if (errno == EFAULT && map) {
            map = NULL; /* What is left of the file, if anything, can still be copied. */
        } else if (errno != EINTR) {
            return fail_io(err, "send", position, size);
        }
    }
}
