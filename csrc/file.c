#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

const kc_file_ops kc_file_ops_libc = {pread, pwrite, ftruncate, fsync, msync};
const kc_file_ops *kc_file_ops_now = &kc_file_ops_libc;

/* Linux moves at most this many bytes per call; macOS refuses more than INT_MAX. */
#define MAX_IO ((int64_t)0x7ffff000)

static kc_status fail_io(kc_error *err, const char *call, int64_t position, int64_t size) {
    return kc_fail(err, KC_IO, call, position, size, errno);
}

int kc_file_open(const char *path, int writable, int create, kc_error *err) {
    /* O_NONBLOCK is for a FIFO in the place of a file, whose open would wait for a writer for ever. */
    int flags = O_CLOEXEC | O_NONBLOCK | (writable ? O_RDWR : O_RDONLY) | (create ? O_CREAT : 0);
    int fd;
    do {
        fd = open(path, flags, 0666);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return (int)fail_io(err, "open", 0, 0);
    struct stat status;
    if (fstat(fd, &status) != 0) {
        fail_io(err, "fstat", 0, 0);
    } else {
        if (S_ISREG(status.st_mode)) return fd;
        errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
        fail_io(err, "open of what is no regular file", 0, 0);
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

uint8_t *kc_file_map(int fd, int64_t size, int writable, kc_error *err) {
    void *map = mmap(NULL, (size_t)size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) return map;
    fail_io(err, "mmap", 0, size);
    return NULL;
}

void kc_file_unmap(uint8_t *map, int64_t size) { munmap(map, (size_t)size); }

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
