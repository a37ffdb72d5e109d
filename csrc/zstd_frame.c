#include "zstd_frame.h"

enum { RAW, REPEATED, COMPRESSED, MOST_OF_A_BLOCK = 128 * 1024, LITTLE_ROOM = 1024 * 1024, MUCH_ROOM = 64 };

static uint64_t load(const uint8_t *p, int size) {
    uint64_t value = 0;
    for (int i = 0; i < size; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

int64_t kc_zstd_most(const uint8_t *data, int64_t size) {
    static const uint8_t dictionary_id_sizes[] = {0, 1, 2, 4}, content_size_sizes[] = {0, 2, 4, 8};
    if (size < 5 || load(data, 4) != 0xfd2fb528) return -1;
    const int descriptor = data[4], is_single_segment = descriptor >> 5 & 1;
    int content_size_size = content_size_sizes[descriptor >> 6];
    if (is_single_segment && content_size_size == 0) content_size_size = 1;
    const int64_t checksum_size = descriptor & 4 ? 4 : 0;
    int64_t at = 5 + !is_single_segment + dictionary_id_sizes[descriptor & 3];
    if (size - at < content_size_size) return -1;
    uint64_t content_size = load(data + at, content_size_size);
    if (content_size_size == 2) content_size += 256;
    at += content_size_size;
    int64_t most = 0;
    for (int is_last = 0; !is_last;) {
        if (size - at < 3) return -1;
        const uint32_t header = (uint32_t)load(data + at, 3), type = header >> 1 & 3, length = header >> 3;
        const int64_t content = type == REPEATED ? 1 : length;
        is_last = header & 1;
        at += 3;
        if (type > COMPRESSED || length > MOST_OF_A_BLOCK || size - at < content) return -1;
        most += type == COMPRESSED ? MOST_OF_A_BLOCK : length;
        at += content;
    }
    if (size - at != checksum_size || (content_size_size && content_size > (uint64_t)most)) return -1;
    if (content_size_size) most = (int64_t)content_size;
    return most <= LITTLE_ROOM || most / MUCH_ROOM <= size ? most : -1;
}
