/* csrc/file.h -- every system call that csrc and kcore.common.file make on a log directory, its small files
 * and its names included, reached through one table, so that a test can let any of them fail (file_faults.h).
 * Nothing here allocates (but opendir), locks, or knows about Python. */
#ifndef KC_FILE_H
#define KC_FILE_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "status.h"

typedef struct kc_file_ops {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*stat)(const char *path, struct stat *status);
    ssize_t (*pread)(int fd, void *buf, size_t size, off_t position);
    ssize_t (*pwrite)(int fd, const void *buf, size_t size, off_t position);
    int (*ftruncate)(int fd, off_t size);
    int (*fsync)(int fd);
    void *(*mmap)(void *address, size_t size, int protection, int flags, int fd, off_t position);
    int (*munmap)(void *address, size_t size);
    int (*msync)(void *address, size_t size, int flags);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rmdir)(const char *path);
    DIR *(*opendir)(const char *path);
    struct dirent *(*readdir)(DIR *directory);
} kc_file_ops;

extern const kc_file_ops kc_file_ops_libc;
extern const kc_file_ops *kc_file_ops_now; /* what the functions below call */

/* Open a regular file: for reading, or with KC_OPEN_WRITE for reading and writing; KC_OPEN_CREATE makes a missing
 * file, though not the one that a link names, KC_OPEN_EMPTY truncates it to nothing.  Never waits for the writer of a
 * FIFO.
 * The descriptor, or a negative status. */
enum { KC_OPEN_READ = 0, KC_OPEN_WRITE = 1, KC_OPEN_CREATE = 2, KC_OPEN_EMPTY = 4 };
int kc_file_open(const char *path, int how, kc_error *err);

void kc_file_close(int fd);

/* Length in bytes, or a negative status. */
int64_t kc_file_size(int fd, kc_error *err);

/* Position of the first hole (a range without a block on the disk) in [0, size); `size` if there is none, or if the
 * file system does not report holes.  Moves the descriptor's offset, which nothing here uses. */
int64_t kc_file_first_hole(int fd, int64_t size);

/* Read until `size` bytes or the end of the file; how many, or a negative status. */
int64_t kc_file_read(int fd, uint8_t *buf, int64_t size, int64_t position, kc_error *err);

/* Write all of buf at `position`, which must be the end of the file as the caller knows it: one
 * pwrite, and more only where the system wrote short.  On failure the file is cut back to `position`;
 * *cut then says whether that worked (it is 1 on success too). */
kc_status kc_file_append(int fd, const uint8_t *buf, int64_t size, int64_t position, int *cut, kc_error *err);

/* Write all of buf at `position`, wherever that is. */
kc_status kc_file_write(int fd, const uint8_t *buf, int64_t size, int64_t position, kc_error *err);

kc_status kc_file_truncate(int fd, int64_t size, kc_error *err);
kc_status kc_file_sync(int fd, kc_error *err);

/* The same for what a path names, a directory too: its names are durable then. */
kc_status kc_file_sync_path(const char *path, kc_error *err);

kc_status kc_file_status(const char *path, struct stat *status, kc_error *err);
int64_t kc_file_modified_ms(const struct stat *status);
kc_status kc_file_rename(const char *from, const char *to, kc_error *err); /* replaces a file, not a full directory */
kc_status kc_file_unlink(const char *path, kc_error *err);
kc_status kc_file_make_directory(const char *path, kc_error *err);
kc_status kc_file_remove_directory(const char *path, kc_error *err);

/* Walk the names of a directory: *name is NULL at the end, and valid until the next call. */
DIR *kc_file_open_directory(const char *path, kc_error *err); /* NULL on failure */
kc_status kc_file_next_name(DIR *directory, const char **name, kc_error *err);
void kc_file_close_directory(DIR *directory);

/* Map [0, size) shared; bytes at or beyond the end of the file must not be touched.  NULL on failure. */
uint8_t *kc_file_map(int fd, int64_t size, int writable, kc_error *err);
void kc_file_unmap(uint8_t *map, int64_t size);
kc_status kc_file_sync_map(uint8_t *map, int64_t size, kc_error *err);

/* Ask the kernel to have [position, position + size) of a mapping in place, in one call instead of one
 * fault per few pages.  Only a hint: without it the scan works, slower. */
void kc_file_populate(const uint8_t *map, int64_t position, int64_t size);

/* Send up to `size` bytes of the file from `position` to a non-blocking socket; how many, 0 when it
 * would block, or a negative status: KC_TRUNCATED when the file ends before `position`.  `map`, if not
 * NULL, is a mapping of the file that covers the range.  Never raises SIGBUS or SIGPIPE. */
int64_t kc_file_send(int socket, int fd, const uint8_t *map, int64_t position, int64_t size, kc_error *err);

#endif
