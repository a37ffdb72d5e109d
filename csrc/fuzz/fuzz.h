/* csrc/fuzz/fuzz.h -- what the fuzz targets share.  A target is one file fuzz_NAME.c with one
 * LLVMFuzzerTestOneInput; its first line names the golden files to start from, `seeds: GLOB`. */
#ifndef KC_FUZZ_H
#define KC_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Unlike assert() never compiled out. */
#define REQUIRE(condition)                                                             \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                                   \
        }                                                                              \
    } while (0)

/* Reads each byte, so that a sanitizer sees an extent that is not there. */
static inline void touch(const uint8_t *data, int64_t size) {
    static volatile uint8_t sink;
    for (int64_t i = 0; i < size; i++) sink = data[i];
    (void)sink;
}

#endif
