/* csrc/varint.h -- zigzag base-128 integers, as in Protocol Buffers: 7 bits a byte, least significant
 * first, the top bit set on all but the last; (n << 1) ^ (n >> 31 or 63) puts the sign into bit 0.
 * Readers take the end of the bytes and return the position after the number, NULL when the bytes end
 * inside it or it does not fit. */
#ifndef KC_VARINT_H
#define KC_VARINT_H

#include <stddef.h>
#include <stdint.h>

enum { KC_VARINT_MAX = 5, KC_VARLONG_MAX = 10 };

static inline int32_t kc_unzigzag32(uint32_t u) { return (int32_t)((u >> 1) ^ (0 - (u & 1))); }
static inline int64_t kc_unzigzag64(uint64_t u) { return (int64_t)((u >> 1) ^ (0 - (u & 1))); }
static inline uint32_t kc_zigzag32(int32_t v) { return ((uint32_t)v << 1) ^ (uint32_t)(v >> 31); }
static inline uint64_t kc_zigzag64(int64_t v) { return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63); }

/* Any length; max_bits is 32 or 64. */
static inline const uint8_t *kc_read_long_varint(const uint8_t *p, const uint8_t *end, int max_bits, uint64_t *u) {
    uint64_t value = 0;
    for (int shift = 0; shift < max_bits; shift += 7) {
        if (p == end) return NULL;
        uint64_t byte = *p++;
        /* Bits of the last byte that would be shifted out mean a number that does not fit. */
        if (shift + 7 > max_bits && (byte & 0x7f) >> (max_bits - shift)) return NULL;
        value |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *u = value;
            return p;
        }
    }
    return NULL;
}

static inline const uint8_t *kc_read_varint(const uint8_t *p, const uint8_t *end, int32_t *value) {
    uint64_t u;
    if (end - p >= 2) { /* nearly all lengths and deltas take one or two bytes */
        if (p[0] < 0x80) {
            *value = kc_unzigzag32(p[0]);
            return p + 1;
        }
        if (p[1] < 0x80) {
            *value = kc_unzigzag32((uint32_t)(p[0] & 0x7f) | (uint32_t)p[1] << 7);
            return p + 2;
        }
    }
    p = kc_read_long_varint(p, end, 32, &u);
    if (p) *value = kc_unzigzag32((uint32_t)u);
    return p;
}

static inline const uint8_t *kc_read_varlong(const uint8_t *p, const uint8_t *end, int64_t *value) {
    uint64_t u;
    if (end - p >= 2) {
        if (p[0] < 0x80) {
            *value = kc_unzigzag64(p[0]);
            return p + 1;
        }
        if (p[1] < 0x80) {
            *value = kc_unzigzag64((uint64_t)(p[0] & 0x7f) | (uint64_t)p[1] << 7);
            return p + 2;
        }
    }
    p = kc_read_long_varint(p, end, 64, &u);
    if (p) *value = kc_unzigzag64(u);
    return p;
}

/* The caller has KC_VARLONG_MAX bytes of room; returns the position after the number. */
static inline uint8_t *kc_write_varlong(uint8_t *p, int64_t value) {
    uint64_t u = kc_zigzag64(value);
    if (u < 0x80) { /* nearly all numbers take one or two bytes: no loop, whose end is hard to foresee */
        *p = (uint8_t)u;
        return p + 1;
    }
    if (u < 0x4000) {
        p[0] = (uint8_t)(u | 0x80);
        p[1] = (uint8_t)(u >> 7);
        return p + 2;
    }
    while (u >= 0x80) {
        *p++ = (uint8_t)(u | 0x80);
        u >>= 7;
    }
    *p++ = (uint8_t)u;
    return p;
}

/* A 32-bit value zigzags to the same bytes at either width. */
static inline uint8_t *kc_write_varint(uint8_t *p, int32_t value) { return kc_write_varlong(p, value); }

static inline int kc_varlong_size(int64_t value) {
    uint64_t u = kc_zigzag64(value);
    return u < 0x80 ? 1 : u < 0x4000 ? 2 : (70 - __builtin_clzll(u)) / 7;
}

#endif
