/* csrc/bytes.h -- big-endian loads and stores, as Kafka's files and wire are throughout; little-endian loads for
 * whoever looks at several bytes at once and wants the first one lowest. */
#ifndef KC_BYTES_H
#define KC_BYTES_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define KC_SWAP16(x) (x)
#define KC_SWAP32(x) (x)
#define KC_SWAP64(x) (x)
#define KC_SWAP_LITTLE(bits, x) __builtin_bswap##bits(x)
#else
#define KC_SWAP16(x) __builtin_bswap16(x)
#define KC_SWAP32(x) __builtin_bswap32(x)
#define KC_SWAP64(x) __builtin_bswap64(x)
#define KC_SWAP_LITTLE(bits, x) (x)
#endif

static inline int16_t kc_load_i16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return (int16_t)KC_SWAP16(v);
}

static inline int32_t kc_load_i32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return (int32_t)KC_SWAP32(v);
}

static inline uint32_t kc_load_u32(const uint8_t *p) { return (uint32_t)kc_load_i32(p); }

static inline int64_t kc_load_i64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return (int64_t)KC_SWAP64(v);
}

static inline uint32_t kc_load_little_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return KC_SWAP_LITTLE(32, v);
}

static inline uint64_t kc_load_little_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return KC_SWAP_LITTLE(64, v);
}

static inline void kc_store_i16(uint8_t *p, int16_t value) {
    uint16_t v = KC_SWAP16((uint16_t)value);
    memcpy(p, &v, sizeof v);
}

static inline void kc_store_i32(uint8_t *p, int32_t value) {
    uint32_t v = KC_SWAP32((uint32_t)value);
    memcpy(p, &v, sizeof v);
}

static inline void kc_store_i64(uint8_t *p, int64_t value) {
    uint64_t v = KC_SWAP64((uint64_t)value);
    memcpy(p, &v, sizeof v);
}

#endif
