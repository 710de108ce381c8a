/* Noise internals: its key, its hash, and a race of candidates for the largest logit / T + G. */
#ifndef PS_NOISE_H
#define PS_NOISE_H

#include <stdbool.h>

#include "ps_kernel.h"

/* Upper bound of the noise: that of the hash 2^32 - 1 is -log(-log(1 - 2^-33)) = 22.874. */
#define PS_MOST_NOISE 22.9

typedef struct ps_noise_key {
    uint32_t low, high;
} ps_noise_key;

ps_noise_key ps_noise_at(uint64_t seed, int64_t position);

double ps_gumbel(uint32_t hash); /* rises with the hash */

/* 32 uniform bits of an id: three rounds of multiply and xorshift (C. Wellons' triple32, public domain), keyed in two places. */
PS_INLINE uint32_t ps_noise_hash(ps_noise_key key, uint32_t id) {
    uint32_t x = id ^ key.low;
    x = (x ^ (x >> 17)) * 0xED5AD4BBu;
    x = (x ^ (x >> 11)) + key.high;
    x *= 0xAC4C1B51u;
    x = (x ^ (x >> 15)) * 0x31848BABu;
    return x ^ (x >> 14);
}

bool ps_coupling_sound(const ps_coupling *how); /* whether its numbers are in range */

/* The two best candidates so far; of equal scores the lower id is better, whatever their order. */
typedef struct ps_race {
    ps_noise_key key;
    int32_t first, second; /* -1 before there is one */
    double best, next;     /* their scores, logit / T + G */
} ps_race;

ps_race ps_race_begin(const ps_coupling *how, int64_t position);
void ps_race_enter(ps_race *race, int32_t id, double scaled); /* scaled: logit / T */

/* Enter a row, truncated by the min_p of `how`; *raw is ps_scan's result for it. */
void ps_race_row(ps_race *race, const float *row, int32_t n_vocab, const ps_coupling *how, const ps_row *raw);

/* The two best as a row in units of logits: z is logit + T * G. */
ps_row ps_race_result(const ps_race *race, const ps_coupling *how);

#endif /* PS_NOISE_H */
