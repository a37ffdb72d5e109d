/* seeds: *.log
 * A frame's room is computed from its own bytes alone: never more than its blocks can hold, and nothing of a frame
 * that is cut anywhere or has bytes after it. */
#include "fuzz.h"
#include "zstd_frame.h"

static void check(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size ? size : 1); /* a sanitizer sees what reads after it */
    memcpy(exact, data, size);
    int64_t most = kc_zstd_most(exact, (int64_t)size);
    REQUIRE(most >= -1 && most <= (int64_t)(size / 3 * 128 * 1024));
    if (most >= 0)
        for (size_t cut = 1; cut <= size; cut++) REQUIRE(kc_zstd_most(exact, (int64_t)(size - cut)) == -1);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    uint8_t framed[4 + 512];
    size_t rest = size < 512 ? size : 512;
    memcpy(framed, magic, 4);
    memcpy(framed + 4, data, rest);
    check(framed, 4 + rest);
    for (size_t at = 0; at + 4 <= size; at++) {
        if (memcmp(data + at, magic, 4)) continue;
        check(data + at, size - at < 512 ? size - at : 512);
        break;
    }
    return 0;
}
