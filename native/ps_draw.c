/*
 * Drawing a token with coupled noise: the argmax of logit / T + G over what truncation leaves. By the Gumbel-max trick that is a
 * draw from the softmax at T; with the same G, a draft's draw and the target's are equal as often as their distributions allow
 * (Daliri, Musco, Suresh, arXiv 2408.07978). Few ids of a vocabulary can win: the others are ruled out by their block's largest
 * logit, then by their hash, before any logarithm is taken.
 */
#include <math.h>
#include <stdbool.h>

#include "ps_noise.h"

/* The largest hash of ids [from, from + n). */
PS_INLINE uint32_t stretch_hash(ps_noise_key key, uint32_t from, uint32_t n) {
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t hash = ps_noise_hash(key, from + i);
        most = hash > most ? hash : most;
    }
    return most;
}

PS_CLONES(uint32_t, stretch_hash, (ps_noise_key key, uint32_t from, uint32_t n), (key, from, n));

ps_race ps_race_begin(const ps_coupling *how, int64_t position) {
    return (ps_race){.key = ps_noise_at(how->seed, position), .first = -1, .second = -1, .best = -INFINITY, .next = -INFINITY};
}

static bool better(double score, int32_t id, double than, int32_t other) {
    return score > than || (score == than && id < other);
}

/*
 * Whether noise of this hash may reach `needed`. With v = 1 - U, G = -log(-log(1 - v)) <= -log(v), so it cannot if v >
 * exp(-needed); the margin allows for the float's rounding.
 */
static bool may_reach(uint32_t hash, double needed) {
    if (needed <= 0) return true;
    if (needed > PS_MOST_NOISE) return false;
    const double v = (4294967295.5 - (double)hash) * (1.0 / 4294967296.0);
    return v <= (double)ps_exp((float)-needed) * 1.0001;
}

void ps_race_enter(ps_race *race, int32_t id, double scaled) {
    if (!(scaled > -INFINITY)) return;
    const uint32_t hash = ps_noise_hash(race->key, (uint32_t)id);
    if (!may_reach(hash, race->next - scaled)) return;
    const double score = scaled + ps_gumbel(hash);
    if (race->first < 0 || better(score, id, race->best, race->first)) {
        race->second = race->first;
        race->next = race->best;
        race->first = id;
        race->best = score;
    } else if (race->second < 0 || better(score, id, race->next, race->second)) {
        race->second = id;
        race->next = score;
    }
}

/* What a row's search needs besides the race. entered: the two entered first, so that the others have something to beat. */
typedef struct search {
    const float *row;
    double temperature;
    float floor;
    int32_t entered[2];
} search;

/* Whether any id of [from, from + n), whose largest logit is `most`, may be one of the two best. */
static bool may_win(const ps_race *race, const search *s, int32_t from, int32_t n, float most, int32_t level) {
    if (!(most >= s->floor) || most == -INFINITY) return false;
    const double needed = race->next - (double)most / s->temperature;
    if (needed > PS_MOST_NOISE) return false;
    if (needed < 1 || s->floor > -INFINITY) return true; /* most hashes reach that, or few ids are above the floor */
    return may_reach(stretch_hash_at[level](race->key, (uint32_t)from, (uint32_t)n), needed);
}

static void enter(ps_race *race, const search *s, int32_t id) {
    if (s->row[id] >= s->floor) ps_race_enter(race, id, (double)s->row[id] / s->temperature);
}

static void enter_stretch(ps_race *race, const search *s, int32_t from, int32_t n) {
    for (int32_t id = from; id < from + n; id++) {
        if (id != s->entered[0] && id != s->entered[1]) enter(race, s, id);
    }
}

void ps_race_row(ps_race *race, const float *row, int32_t n_vocab, const ps_coupling *how, const ps_row *raw) {
    const float floor = how->min_p > 0 ? raw->z1 + logf(how->min_p) : -INFINITY;
    const search s = {row, (double)how->temperature, floor, {raw->first, raw->second}};
    enter(race, &s, raw->first);
    if (raw->second >= 0) enter(race, &s, raw->second);
    const int32_t level = ps_simd();
    for (int32_t i = 0, n; i < n_vocab; i += n) {
        n = n_vocab - i < PS_STRETCH ? n_vocab - i : PS_STRETCH;
        if (may_win(race, &s, i, n, ps_scan_max(row + i, n, level), level)) enter_stretch(race, &s, i, n);
    }
}

ps_row ps_race_result(const ps_race *race, const ps_coupling *how) {
    const double t = (double)how->temperature;
    const float z2 = race->second < 0 ? -INFINITY : (float)(t * race->next);
    return (ps_row){.first = race->first, .second = race->second, .z1 = (float)(t * race->best), .z2 = z2};
}

bool ps_coupling_sound(const ps_coupling *how) {
    return how->temperature > 0 && how->temperature < INFINITY && how->min_p >= 0 && how->min_p <= 1 && how->top_p >= 0 &&
           how->top_p <= 1;
}

ps_status ps_draw(const float *row, int32_t n_vocab, const ps_coupling *how, int64_t position, ps_row *out) {
    if (!row || !out || n_vocab < 1 || position < 0 || !how || !ps_coupling_sound(how)) return PS_E_ARG;
    ps_row raw;
    const ps_status status = ps_scan(row, n_vocab, PS_SCAN_TOP2, &raw);
    if (status != PS_OK) return status;
    ps_race race = ps_race_begin(how, position);
    ps_race_row(&race, row, n_vocab, how, &raw);
    *out = ps_race_result(&race, how);
    return PS_OK;
}

/* The k largest logits of a row in order; returns how many there are. */
static int32_t take_top(float *best, const float *row, int32_t n_vocab, int32_t k, int32_t level) {
    int32_t held = 0;
    for (int32_t i = 0, end; i < n_vocab; i = end) {
        end = n_vocab - i < PS_STRETCH ? n_vocab : i + PS_STRETCH;
        if (held == k && ps_scan_max(row + i, end - i, level) <= best[k - 1]) continue;
        for (int32_t id = i; id < end; id++) {
            if (held == k && row[id] <= best[k - 1]) continue;
            int32_t at = held < k ? held++ : k - 1;
            for (; at > 0 && best[at - 1] < row[id]; at--) best[at] = best[at - 1];
            best[at] = row[id];
        }
    }
    return held;
}

/* The logits of a row from a floor up: how many, and their weight; `most` weighs 1. */
typedef struct part {
    int32_t n;
    float mass;
} part;

PS_INLINE part block_part(const float *x, int32_t n, float most, float floor) {
    int32_t count = 0;
    float mass = 0;
#pragma omp simd reduction(+ : count, mass)
    for (int32_t i = 0; i < n; i++) {
        count += x[i] >= floor;
        mass += x[i] >= floor ? ps_exp(x[i] - most) : 0;
    }
    return (part){count, mass};
}

PS_CLONES(part, block_part, (const float *x, int32_t n, float most, float floor), (x, n, most, floor));

static part part_from(const float *row, int32_t n_vocab, float most, float floor) {
    part found = {0, 0};
    for (int32_t i = 0; i < n_vocab; i += PS_BLOCK) {
        const part more = block_part_at[ps_simd()](row + i, n_vocab - i < PS_BLOCK ? n_vocab - i : PS_BLOCK, most, floor);
        found = (part){found.n + more.n, found.mass + more.mass};
    }
    return found;
}

/* The highest floor, from `low` up, that leaves as much as is wanted; `low` if none does. */
static float floor_of(const float *row, int32_t n_vocab, float most, float low, part wanted) {
    float high = nextafterf(most, INFINITY);
    int32_t at_low = n_vocab, at_high = 0;
    for (float floor; at_low - at_high > 1 && (floor = low + (high - low) / 2) > low && floor < high;) {
        const part left = part_from(row, n_vocab, most, floor);
        const bool enough = left.n >= wanted.n && left.mass >= wanted.mass;
        *(enough ? &low : &high) = floor;
        *(enough ? &at_low : &at_high) = left.n;
    }
    return low;
}

/* The floor of top_p over what a floor leaves. */
static float floor_of_mass(const float *row, int32_t n_vocab, float most, float floor, float top_p) {
    const float whole = part_from(row, n_vocab, most, floor).mass;
    const float low = most + logf((1 - top_p) * whole / (float)n_vocab); /* all below it are less than the rest */
    return fmaxf(floor, floor_of(row, n_vocab, most, low, (part){0, top_p * whole}));
}

ps_status ps_draw_cut(const float *row, int32_t n_vocab, const ps_coupling *how, float most, float *share) {
    if (!row || !share || n_vocab < 1 || !how || !ps_coupling_sound(how)) return PS_E_ARG;
    const int32_t k = how->top_k;
    float best[PS_MOST_TOP], floor = -INFINITY;
    if (k > 0 && k <= PS_MOST_TOP) {
        n_vocab = take_top(best, row, n_vocab, k, ps_simd());
        row = best;
        floor = best[n_vocab - 1];
    } else if (k > 0 && k < n_vocab) {
        floor = floor_of(row, n_vocab, most, most - 86, (part){k, 0}); /* what is lower weighs nothing */
    }
    if (how->top_p > 0 && how->top_p < 1) floor = floor_of_mass(row, n_vocab, most, floor, how->top_p);
    *share = how->min_p;
    if (floor > -INFINITY) *share = fmaxf(how->min_p, ps_exp(floor - most) * (1 - 1e-5f)); /* what is at the floor stays */
    return PS_OK;
}
