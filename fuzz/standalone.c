/* A stand-in for libFuzzer where clang is missing: mutates seeds without coverage feedback.
 * usage: fuzzer SECONDS SEED SEED_FILE...   A crash leaves its input in ./crash. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MOST 8192
static uint64_t state = 88172645463325252u;

static uint32_t any(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (uint32_t)((state >> 16) % below) : 0;
}

int main(int argc, char **argv) {
    static uint8_t seeds[64][MOST], input[MOST], copy[MOST];
    size_t lengths[64];
    int count = 0, i;
    unsigned long runs = 0;
    time_t end = time(0) + atoi(argv[1]);
    state ^= (uint64_t)atoi(argv[2]) << 20;
    for (i = 3; i < argc && count < 64; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file) return perror(argv[i]), 1;
        lengths[count] = fread(seeds[count], 1, MOST, file);
        fclose(file);
        count++;
    }
    if (!count) return 2;
    while (runs % 32 || time(0) < end) {
        uint32_t seed = any((uint32_t)count), changes = 1 + any(8);
        size_t n = lengths[seed];
        FILE *file;
        memcpy(input, seeds[seed], n);
        while (changes--) {
            uint32_t at = any((uint32_t)n + 1), other = any((uint32_t)count);
            size_t from = any((uint32_t)lengths[other]), size = any((uint32_t)(lengths[other] - from) + 1);
            switch (any(6)) {
            case 0:
                if (n) input[at % n] = (uint8_t)any(256);
                break;
            case 1:
                if (n) input[at % n] ^= (uint8_t)(1u << any(8));
                break;
            case 2: n = at; break;
            case 3: /* insert a part of another seed */
                if (n + size > MOST) break;
                memcpy(copy, input + at, n - at);
                memcpy(input + at, seeds[other] + from, size);
                memcpy(input + at + size, copy, n - at);
                n += size;
                break;
            case 4:
                if (n && at < n) {
                    memmove(input + at, input + at + 1, n - at - 1);
                    n--;
                }
                break;
            default:
                if (n) input[at % n] = (uint8_t)"\r\n\0 :;/\xff"[any(8)];
                break;
            }
        }
        if (runs % 65536 == 0) { /* for reproducing a crash */
            file = fopen("crash", "wb");
            if (file) {
                fwrite(&state, sizeof state, 1, file);
                fclose(file);
            }
        }
        LLVMFuzzerTestOneInput(input, n);
        runs++;
    }
    remove("crash");
    printf("%lu runs\n", runs);
    return 0;
}
