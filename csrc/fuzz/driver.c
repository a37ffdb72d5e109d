/* csrc/fuzz/driver.c -- runs one LLVMFuzzerTestOneInput without libFuzzer: seed files, mutated at random.
 *
 *     driver SECONDS SEED FILE...
 *
 * The same arguments give the same sequence of inputs, so a crash at input N is met again.  Every input is a
 * heap block of exactly its size: AddressSanitizer sees the first byte read after it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 4096, MAX_MUTATIONS = 6 };

typedef struct seed {
    uint8_t *data;
    size_t size;
} seed;

static uint64_t state;

/* splitmix64 */
static uint64_t next_random(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t limit) { return limit ? (size_t)(next_random() % limit) : 0; }

static seed read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    seed input = {malloc(1 << 20), 0};
    input.size = fread(input.data, 1, 1 << 20, file);
    fclose(file);
    return input;
}

/* A window of a seed: mostly from its start, where the first header is. */
static size_t pick(const seed *seeds, int count, uint8_t *input) {
    const seed *from = seeds + below((size_t)count);
    size_t start = below(4) ? 0 : below(from->size);
    size_t size = from->size - start;
    if (size > MAX_INPUT) size = below(2) ? MAX_INPUT : below(MAX_INPUT);
    memcpy(input, from->data + start, size);
    return size;
}

static size_t mutate(uint8_t *input, size_t size) {
    static const uint8_t telling[] = {0x00, 0x01, 0x02, 0x3d, 0x7e, 0x7f, 0x80, 0xff};
    size_t at = below(2) ? below(size < 100 ? size : 100) : below(size);
    size_t run = 1 + below(8);
    if (size == 0) return 0;
    switch (below(7)) {
    case 0: input[at] ^= (uint8_t)(1 << below(8)); break;
    case 1: input[at] = (uint8_t)next_random(); break;
    case 2: input[at] = telling[below(sizeof telling)]; break;
    case 3: /* an integer at one of its ends */
        if (run > size - at) run = size - at;
        memset(input + at, telling[below(sizeof telling)], run);
        break;
    case 4: return at + 1; /* cut */
    case 5: /* remove a run */
        if (run > size - at) run = size - at;
        memmove(input + at, input + at + run, size - at - run);
        return size - run;
    case 6: /* repeat a run */
        if (run > size - at || size + run > MAX_INPUT) break;
        memmove(input + at + run, input + at, size - at);
        return size + run;
    }
    return size;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s SECONDS SEED FILE...\n", argv[0]);
        return 2;
    }
    double seconds = atof(argv[1]);
    state = strtoull(argv[2], NULL, 10);
    int count = argc - 3;
    seed *seeds = malloc((size_t)count * sizeof *seeds);
    for (int i = 0; i < count; i++) {
        seeds[i] = read_file(argv[3 + i]);
        LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].size);
    }
    static uint8_t input[MAX_INPUT];
    uint64_t inputs = 0;
    time_t end = time(NULL) + (time_t)seconds;
    for (; inputs % 1024 || time(NULL) < end; inputs++) {
        size_t size = pick(seeds, count, input);
        for (size_t i = below(MAX_MUTATIONS); i > 0; i--) size = mutate(input, size);
        uint8_t *exact = malloc(size ? size : 1);
        memcpy(exact, input, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    printf("%s: %llu inputs from %d seeds, none broke it\n", argv[0], (unsigned long long)inputs, count);
    for (int i = 0; i < count; i++) free(seeds[i].data);
    free(seeds);
    return 0;
}
